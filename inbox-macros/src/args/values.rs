//! Reads the value of each key. Every error says what to write instead.

use std::time::SystemTime;

use inbox_rules::{limits, subject_rules};
use syn::{Expr, ExprPath, Lit, LitBool, LitStr, Path};

use super::{
    Ack, Attempts, Commit, Id, Start, Text,
    suggest::{self, Key},
};

pub(crate) fn group(value: &Expr) -> syn::Result<Text> {
    text(value, &suggest::GROUP, subject_rules::check_group)
}

pub(crate) fn subject(value: &Expr) -> syn::Result<Text> {
    text(value, &suggest::SUBJECT, subject_rules::check_subject)
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
    let literal = string(value, &suggest::START)?;
    let text = literal.value();
    let wrong = |message: String| Err(syn::Error::new(literal.span(), message));
    if let Some(number) = text.strip_prefix("sequence:") {
        return match number.parse() {
            Ok(0) | Err(_) => wrong("a sequence is a whole number from 1, as in \"sequence:1234\"".to_owned()),
            Ok(sequence) => Ok(Start::Sequence(sequence)),
        };
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return match time(&text) {
            Some(millis) => Ok(Start::Time(millis)),
            None => wrong(format!(
                "`{}` is not a time in UTC; write it as in \"2026-01-31T00:00:00Z\", from 1970 on",
                text.escape_debug()
            )),
        };
    }
    let words = [("first", Start::First), ("new", Start::New)];
    word(&literal, "start position", &words).map_err(|error| {
        let more = "or a time (`2026-01-31T00:00:00Z`) or a sequence of the stream (`sequence:1234`)";
        syn::Error::new(literal.span(), format!("{error}, {more}"))
    })
}

/// A time in milliseconds since 1970.
fn time(text: &str) -> Option<i64> {
    let time = humantime::parse_rfc3339(text).ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
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
    limits::timeout(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))
}

/// The smallest and the largest back-off in milliseconds.
pub(crate) fn backoff(value: &Expr) -> syn::Result<(u64, u64)> {
    let literal = string(value, &suggest::BACKOFF)?;
    limits::backoff(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))
}

pub(crate) fn max_attempts(value: &Expr) -> syn::Result<Attempts> {
    match literal(value) {
        Some(Lit::Str(word)) if word.value() == "unlimited" => Ok(Attempts::Unlimited),
        _ => limits::max_attempts(number(value))
            .map(Attempts::Limit)
            .map_err(|message| syn::Error::new_spanned(value, message)),
    }
}

pub(crate) fn concurrency(value: &Expr) -> syn::Result<u32> {
    limits::concurrency(number(value)).map_err(|message| syn::Error::new_spanned(value, message))
}

fn number(value: &Expr) -> Option<u32> {
    match literal(value) {
        Some(Lit::Int(number)) => number.base10_parse().ok(),
        _ => None,
    }
}

pub(crate) fn stream(value: &Expr) -> syn::Result<LitStr> {
    let literal = string(value, &suggest::STREAM)?;
    subject_rules::check_stream(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))?;
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
