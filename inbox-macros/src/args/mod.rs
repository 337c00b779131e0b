//! Reads the attribute: from tokens to values that are checked.

use proc_macro2::{Ident, Span, TokenStream};
use syn::{ExprPath, LitBool, LitStr, Path};

use crate::errors::Errors;

mod pairs;
mod suggest;
#[cfg(test)]
mod tests;
mod values;

use self::pairs::{Pair, Pairs};

/// What the attribute says, checked. `None` is a key that wasn't given.
pub(crate) struct Args {
    pub(crate) group: Text,
    pub(crate) subject: Text,
    pub(crate) ack: Ack,
    /// Where `ack` is written, if it is.
    pub(crate) ack_span: Option<Span>,
    pub(crate) id: Option<Id>,
    pub(crate) start: Option<Start>,
    /// In milliseconds.
    pub(crate) timeout: Option<u64>,
    pub(crate) max_attempts: Option<Attempts>,
    /// The smallest and the largest, in milliseconds.
    pub(crate) backoff: Option<(u64, u64)>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) stream: Option<LitStr>,
    pub(crate) ordered: Option<bool>,
    pub(crate) runtime: Option<Path>,
}

/// A name: a literal, which is checked here, or a const, which is checked when the program starts.
pub(crate) enum Text {
    Literal(LitStr),
    Const(ExprPath),
}

/// When a delivery is acknowledged: `ack` and `commit` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ack {
    #[default]
    ExactlyOnce,
    AtLeastOnce,
    OnPersist,
    AtMostOnce,
}

impl Ack {
    /// Whether the runtime claims the message in the handler's transaction.
    pub(crate) fn claims(self) -> bool {
        self == Self::ExactlyOnce
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    OnSuccess,
    OnPersist,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    Header(String),
    Json(String),
    Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    First,
    New,
    /// In milliseconds since 1970.
    Time(i64),
    Sequence(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempts {
    Limit(u32),
    Unlimited,
}

/// A value and where it is written.
struct Spanned<T> {
    value: T,
    span: Span,
}

/// A key that may have been given: with a value that can be used, or with one that was reported.
#[derive(Default)]
enum Slot<T> {
    #[default]
    Absent,
    Wrong,
    Given(Spanned<T>),
}

impl<T> Slot<T> {
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    fn value(self) -> Option<T> {
        self.spanned().map(|given| given.value)
    }

    fn spanned(self) -> Option<Spanned<T>> {
        match self {
            Self::Given(given) => Some(given),
            Self::Absent | Self::Wrong => None,
        }
    }
}

/// The attribute as it is read, before the keys are looked at together.
#[derive(Default)]
struct Slots {
    group: Slot<Text>,
    subject: Slot<Text>,
    ack: Slot<Ack>,
    commit: Slot<Commit>,
    id: Slot<Id>,
    start: Slot<Start>,
    timeout: Slot<u64>,
    max_attempts: Slot<Attempts>,
    backoff: Slot<(u64, u64)>,
    concurrency: Slot<u32>,
    stream: Slot<LitStr>,
    ordered: Slot<LitBool>,
    runtime: Slot<Path>,
    /// The keys that were probably meant by unknown ones.
    meant: Vec<&'static str>,
}

/// Reads the attribute's arguments.
pub(crate) fn parse(tokens: TokenStream) -> syn::Result<Args> {
    let mut errors = Errors::default();
    let Pairs { pairs, incomplete } = pairs::parse(tokens, &mut errors);
    let mut slots = Slots::default();
    for pair in pairs {
        errors.take(slots.set(&pair));
    }
    if !incomplete {
        errors.take(slots.check_missing());
    }
    let ack_span = match &slots.ack {
        Slot::Given(ack) => Some(ack.span),
        Slot::Absent | Slot::Wrong => None,
    };
    let ack = if incomplete {
        None
    } else {
        errors.take(slots.check_ack())
    };
    errors.take(slots.check_order());
    let names = slots.group.value().zip(slots.subject.value());
    let (group, subject) = errors.finish(names)?;
    Ok(Args {
        group,
        subject,
        ack: ack.unwrap_or_default(),
        ack_span,
        id: slots.id.value(),
        start: slots.start.value(),
        timeout: slots.timeout.value(),
        max_attempts: slots.max_attempts.value(),
        backoff: slots.backoff.value(),
        concurrency: slots.concurrency.value(),
        stream: slots.stream.value(),
        ordered: slots.ordered.value().map(|ordered| ordered.value),
        runtime: slots.runtime.value(),
    })
}

const MISSING_BOTH: &str =
    "`group` and `subject` are missing; write `#[inbox_handler(group = \"billing\", subject = \"order.created\")]`";

impl Slots {
    fn set(&mut self, pair: &Pair) -> syn::Result<()> {
        match pair.key.to_string().as_str() {
            "group" => fill(&mut self.group, pair, values::group),
            "subject" => fill(&mut self.subject, pair, values::subject),
            "ack" => fill(&mut self.ack, pair, values::ack),
            "commit" => fill(&mut self.commit, pair, values::commit),
            "id" => fill(&mut self.id, pair, values::id),
            "start" => fill(&mut self.start, pair, values::start),
            "timeout" => fill(&mut self.timeout, pair, values::timeout),
            "max_attempts" => fill(&mut self.max_attempts, pair, values::max_attempts),
            "backoff" => fill(&mut self.backoff, pair, values::backoff),
            "concurrency" => fill(&mut self.concurrency, pair, values::concurrency),
            "stream" => fill(&mut self.stream, pair, values::stream),
            "ordered" => fill(&mut self.ordered, pair, values::ordered),
            "crate" => fill(&mut self.runtime, pair, values::path),
            _ => Err(self.unknown(&pair.key)),
        }
    }

    /// Reports an unknown key, and notes the one that was meant, so that it isn't reported as missing too.
    fn unknown(&mut self, key: &Ident) -> syn::Error {
        let near = suggest::nearest_key(&key.to_string());
        self.meant.extend(near);
        let hint = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        let known = suggest::list(suggest::KEYS.iter().map(|key| key.name));
        syn::Error::new(key.span(), format!("unknown key `{key}`; {hint}(known keys: {known})"))
    }

    fn check_missing(&self) -> syn::Result<()> {
        let error = |key: suggest::Key| {
            let message = format!("`{}` is missing; add `{}`", key.name, key.example);
            Err(syn::Error::new(Span::call_site(), message))
        };
        match (self.lacks("group", &self.group), self.lacks("subject", &self.subject)) {
            (true, true) => Err(syn::Error::new(Span::call_site(), MISSING_BOTH)),
            (true, false) => error(suggest::GROUP),
            (false, true) => error(suggest::SUBJECT),
            (false, false) => Ok(()),
        }
    }

    fn lacks<T>(&self, key: &str, slot: &Slot<T>) -> bool {
        slot.is_absent() && !self.meant.contains(&key)
    }

    /// Several at a time have no order.
    fn check_order(&self) -> syn::Result<()> {
        match (&self.ordered, &self.concurrency) {
            (Slot::Given(ordered), Slot::Given(workers)) if ordered.value.value && workers.value > 1 => {
                Err(syn::Error::new(
                    workers.span,
                    "an `ordered` handler takes one message at a time; leave `concurrency` out, or `ordered`",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Puts `ack` and `commit` together.
    fn check_ack(&mut self) -> syn::Result<Ack> {
        let stated = std::mem::take(&mut self.ack);
        if matches!(stated, Slot::Wrong) || self.meant.contains(&"ack") {
            return Ok(Ack::default());
        }
        let ack = stated.value().unwrap_or_default();
        match std::mem::take(&mut self.commit).spanned() {
            None => Ok(ack),
            Some(commit) if ack == Ack::AtLeastOnce => Ok(match commit.value {
                Commit::OnSuccess => Ack::AtLeastOnce,
                Commit::OnPersist => Ack::OnPersist,
            }),
            Some(commit) => Err(syn::Error::new(
                commit.span,
                "`commit` is a choice of `at_least_once` handlers only; write `ack = \"at_least_once\"`, or leave `commit` out",
            )),
        }
    }
}

fn fill<T>(slot: &mut Slot<T>, pair: &Pair, read: fn(&syn::Expr) -> syn::Result<T>) -> syn::Result<()> {
    if !slot.is_absent() {
        return Err(syn::Error::new(
            pair.key.span(),
            format!("`{}` is given twice; keep one", pair.key),
        ));
    }
    *slot = Slot::Wrong;
    let value = read(&pair.value)?;
    let span = syn::spanned::Spanned::span(&pair.value);
    *slot = Slot::Given(Spanned { value, span });
    Ok(())
}
