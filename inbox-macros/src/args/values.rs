//! Reads the value of each key. Every error says what to write instead.

use std::time::Duration;

use syn::{Expr, ExprPath, Lit, LitBool, LitStr, Path};

use super::{
    Ack, Attempts, Commit, Id, Start, Text,
    suggest::{self, Key},
};
use crate::names;

/// The longest duration, a bound against mistyped units.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The largest number of workers of one handler.
const MAX_CONCURRENCY: u32 = 1024;

pub(crate) fn group(value: &Expr) -> syn::Result<Text> {
    text(value, &suggest::GROUP, names::check_group)
}

pub(crate) fn subject(value: &Expr) -> syn::Result<Text> {
    text(value, &suggest::SUBJECT, names::check_subject)
}

pub(crate) fn ack(value: &Expr) -> syn::Result<Ack> {
    let words = [
        ("exactly_once", Ack::ExactlyOnce),
        ("at_least_once", Ack::AtLeastOnce),
        ("at_most_once", Ack::AtMostOnce),
    ];
    word(&string(value, &suggest::ACK)?, "ack mode", &words)
}

pub(crate) fn commit(value: &Expr) -> syn::Result<Commit> {
    let words = [("on_success", Commit::OnSuccess), ("on_persist", Commit::OnPersist)];
    word(&string(value, &suggest::COMMIT)?, "commit mode", &words)
}

pub(crate) fn start(value: &Expr) -> syn::Result<Start> {
    let words = [("first", Start::First), ("new", Start::New)];
    word(&string(value, &suggest::START)?, "start position", &words)
}

pub(crate) fn id(value: &Expr) -> syn::Result<Id> {
    let literal = string(value, &suggest::ID)?;
    let text = literal.value();
    let wrong = |message: String| Err(syn::Error::new(literal.span(), message));
    match text.split_once(':') {
        None if text == "position" => Ok(Id::Position),
        Some(("header", name)) => {
            if name.is_empty() {
                return wrong(
                    "the header has no name; write it behind the colon, as in \"header:order-id\"".to_owned(),
                );
            }
            if let Some(c) = name.chars().find(|&c| c == ':' || !c.is_ascii_graphic()) {
                let c = c.escape_debug();
                return wrong(format!(
                    "the header's name contains `{c}`; visible ASCII without `:` is allowed"
                ));
            }
            Ok(Id::Header(name.to_owned()))
        }
        Some(("json", pointer)) => {
            if !pointer.starts_with('/') {
                return wrong("a JSON pointer begins with `/`, as in \"json:/order/id\"".to_owned());
            }
            let mut escapes = pointer.split('~').skip(1);
            if !escapes.all(|rest| rest.starts_with(['0', '1'])) {
                return wrong("in a JSON pointer `~` is written `~0`, and `/` in a name `~1`".to_owned());
            }
            Ok(Id::Json(pointer.to_owned()))
        }
        _ => wrong(format!(
            "unknown id source \"{}\"; write \"header:NAME\", \"json:/pointer\" or \"position\"",
            text.escape_debug()
        )),
    }
}

/// The timeout in milliseconds.
pub(crate) fn timeout(value: &Expr) -> syn::Result<u64> {
    let literal = string(value, &suggest::TIMEOUT)?;
    duration(&literal.value())
        .and_then(|millis| match millis {
            0 => Err("no handler finishes within a timeout of zero; write how long one may run, as in \"30s\"".into()),
            millis => Ok(millis),
        })
        .map_err(|message| syn::Error::new(literal.span(), message))
}

/// The smallest and the largest back-off in milliseconds.
pub(crate) fn backoff(value: &Expr) -> syn::Result<(u64, u64)> {
    let literal = string(value, &suggest::BACKOFF)?;
    range(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (first, max) = text.split_once("..").unwrap_or((text, text));
    let max = max.strip_prefix('=').unwrap_or(max);
    if first.trim().is_empty() || max.trim().is_empty() {
        return Err("write both ends of the back-off, as in \"1s..5m\"".to_owned());
    }
    let (first_millis, max_millis) = (duration(first)?, duration(max)?);
    if first_millis == 0 {
        return Err("with a back-off of zero a failing message comes again at once, for ever; write \"1s..5m\"".into());
    }
    if first_millis > max_millis {
        return Err(format!(
            "the back-off falls; write \"{}..{}\"",
            max.trim(),
            first.trim()
        ));
    }
    Ok((first_millis, max_millis))
}

/// A duration in milliseconds.
fn duration(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let duration = humantime::parse_duration(text).map_err(|error| {
        let text = text.escape_debug();
        format!("\"{text}\" is not a duration ({error}); write \"500ms\", \"30s\" or \"5m\"")
    })?;
    if duration > MAX_DURATION {
        return Err(format!(
            "\"{text}\" is longer than a year; write \"500ms\", \"30s\" or \"5m\""
        ));
    }
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(format!(
            "\"{text}\" is finer than a millisecond; write whole milliseconds, as in \"500ms\""
        ));
    }
    u64::try_from(duration.as_millis()).map_err(|_| format!("\"{text}\" is too long"))
}

pub(crate) fn max_attempts(value: &Expr) -> syn::Result<Attempts> {
    match literal(value) {
        Some(Lit::Str(word)) if word.value() == "unlimited" => return Ok(Attempts::Unlimited),
        Some(Lit::Int(number)) => {
            if let Ok(limit @ 1..) = number.base10_parse() {
                return Ok(Attempts::Limit(limit));
            }
        }
        _ => {}
    }
    let message = format!(
        "not a number of attempts; write one from 1, as in `{}`, or \"unlimited\"",
        suggest::MAX_ATTEMPTS.example
    );
    Err(syn::Error::new_spanned(value, message))
}

pub(crate) fn concurrency(value: &Expr) -> syn::Result<u32> {
    if let Some(Lit::Int(number)) = literal(value)
        && let Ok(workers @ 1..=MAX_CONCURRENCY) = number.base10_parse()
    {
        return Ok(workers);
    }
    let message = format!(
        "not a number of messages at a time; write 1 to {MAX_CONCURRENCY}, as in `{}`",
        suggest::CONCURRENCY.example
    );
    Err(syn::Error::new_spanned(value, message))
}

pub(crate) fn stream(value: &Expr) -> syn::Result<LitStr> {
    let literal = string(value, &suggest::STREAM)?;
    names::check_stream(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))?;
    Ok(literal)
}

pub(crate) fn ordered(value: &Expr) -> syn::Result<LitBool> {
    match literal(value) {
        Some(Lit::Bool(ordered)) => Ok(ordered.clone()),
        _ => {
            let message = format!("write `true` or `false`, as in `{}`", suggest::ORDERED.example);
            Err(syn::Error::new_spanned(value, message))
        }
    }
}

pub(crate) fn path(value: &Expr) -> syn::Result<Path> {
    match as_path(value) {
        Some(path) => Ok(path.path.clone()),
        None => {
            let message = format!("expected a path without quotes, as in `{}`", suggest::CRATE.example);
            Err(syn::Error::new_spanned(value, message))
        }
    }
}

fn text(value: &Expr, key: &Key, check: fn(&str) -> Result<(), String>) -> syn::Result<Text> {
    if let Some(path) = as_path(value) {
        return Ok(Text::Const(path.clone()));
    }
    let message = format!(
        "expected a string literal, as in `{}`, or the path of a const",
        key.example
    );
    let literal = as_string(value).ok_or_else(|| syn::Error::new_spanned(value, message))?;
    check(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))?;
    Ok(Text::Literal(literal.clone()))
}

fn string(value: &Expr, key: &Key) -> syn::Result<LitStr> {
    let message = || format!("expected a string literal, as in `{}`", key.example);
    as_string(value)
        .cloned()
        .ok_or_else(|| syn::Error::new_spanned(value, message()))
}

fn word<T: Copy>(literal: &LitStr, what: &str, words: &[(&str, T)]) -> syn::Result<T> {
    let text = literal.value();
    if let Some(&(_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(value);
    }
    let known = || words.iter().map(|&(word, _)| word);
    let hint = suggest::nearest(&text, known()).map_or_else(
        || format!("write one of {}", suggest::list(known())),
        |word| format!("did you mean `{word}`?"),
    );
    let message = match text.as_str() {
        "" => format!("the {what} is empty; {hint}"),
        text => format!("unknown {what} `{}`; {hint}", text.escape_debug()),
    };
    Err(syn::Error::new(literal.span(), message))
}

fn as_string(value: &Expr) -> Option<&LitStr> {
    match literal(value) {
        Some(Lit::Str(literal)) => Some(literal),
        _ => None,
    }
}

fn literal(value: &Expr) -> Option<&Lit> {
    match strip(value) {
        Expr::Lit(literal) => Some(&literal.lit),
        _ => None,
    }
}

fn as_path(value: &Expr) -> Option<&ExprPath> {
    match strip(value) {
        Expr::Path(path) if path.qself.is_none() && path.attrs.is_empty() => Some(path),
        _ => None,
    }
}

/// Takes off the invisible groups in which `macro_rules!` wraps its fragments.
fn strip(mut value: &Expr) -> &Expr {
    while let Expr::Group(group) = value {
        value = &group.expr;
    }
    value
}
