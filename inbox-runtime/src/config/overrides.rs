//! What the file says of single handlers, in place of their attributes.

use std::{borrow::Cow, time::Duration};

use inbox_rules::limits;
use toml::de::{DeTable, DeValue};

use super::{
    document::{Document, number_of},
    setting::OF_HANDLERS,
    value::nearest,
};
use crate::{backoff::Backoff, handler::HandlerMeta};

/// What the file says of the handlers of one name, one group, or one group and subject.
#[derive(Clone, Debug, Default)]
struct Override {
    /// The name of a handler, a group, or `group/subject`.
    key: String,
    place: String,
    changes: Vec<Change>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Concurrency(u32),
    Timeout(Duration),
    Backoff(Backoff),
    MaxAttempts(Option<u32>),
}

impl Change {
    /// What a value of the file says, by the bounds of the attribute; `None` if there is no such setting.
    fn read(name: &str, value: &DeValue<'_>) -> Option<Result<Self, String>> {
        let text = value.as_str();
        Some(match name {
            "concurrency" => limits::concurrency(number(value)).map(Self::Concurrency),
            "max_attempts" if text == Some("unlimited") => Ok(Self::MaxAttempts(None)),
            "max_attempts" => limits::max_attempts(number(value)).map(|limit| Self::MaxAttempts(Some(limit))),
            "timeout" => in_quotes(name, text)
                .and_then(limits::timeout)
                .map(|millis| Self::Timeout(Duration::from_millis(millis))),
            "backoff" => in_quotes(name, text).and_then(limits::backoff).map(|(first, max)| {
                Self::Backoff(Backoff {
                    first: Duration::from_millis(first),
                    max: Duration::from_millis(max),
                })
            }),
            _ => return None,
        })
    }

    fn apply(self, meta: &mut HandlerMeta) {
        match self {
            Self::Concurrency(workers) => meta.concurrency = workers,
            Self::Timeout(timeout) => meta.timeout = timeout,
            Self::Backoff(backoff) => meta.backoff = backoff,
            Self::MaxAttempts(limit) => meta.max_attempts = limit,
        }
    }
}

/// Everything that the file says of handlers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides(Vec<Override>);

impl Overrides {
    /// Takes a table of the file.
    pub(super) fn read(&mut self, file: &mut Document<'_>, key: Cow<'_, str>, place: &str, table: DeTable<'_>) {
        let mut new = Override {
            key: key.into_owned(),
            place: place.to_owned(),
            ..Override::default()
        };
        for (name, value) in table {
            let place = file.place(&name.span());
            let name = name.get_ref().as_ref();
            match Change::read(name, value.get_ref()) {
                Some(Ok(change)) => new.changes.push(change),
                Some(Err(problem)) => {
                    let problem = format!("`{name}` of [handlers.\"{}\"]: {problem}", new.key);
                    file.problem(&place, &problem);
                }
                None => {
                    let known = OF_HANDLERS.iter().filter_map(|setting| setting.key);
                    file.unknown(&place, "a setting of a handler", name, known);
                }
            }
        }
        self.0.push(new);
    }

    /// The handler as the file has it. What is said of it by name goes before what is said of its group and subject, and
    /// that before what is said of its group.
    pub(crate) fn apply(&self, meta: &HandlerMeta) -> HandlerMeta {
        let mut changed = meta.clone();
        let mut matching: Vec<_> = self.0.iter().filter(|one| one.is_of(meta)).collect();
        matching.sort_by_key(|one| (one.key == meta.name, one.key.contains('/')));
        for one in matching {
            one.changes.iter().for_each(|change| change.apply(&mut changed));
        }
        changed
    }

    /// Checks that each is of a handler that is linked.
    pub(crate) fn check(&self, all: &[&'static HandlerMeta], problems: &mut Vec<String>) {
        for one in self.0.iter().filter(|one| !all.iter().any(|meta| one.is_of(meta))) {
            let known: Vec<_> = all.iter().flat_map(|meta| names_of(meta)).collect();
            let nearest = match nearest(&one.key, known.iter().map(AsRef::as_ref)) {
                "" => "there are no handlers".to_owned(),
                nearest => format!("the nearest is [handlers.\"{nearest}\"]"),
            };
            problems.push(format!(
                "{}: [handlers.\"{}\"] is of no handler: write the path of the function, a group, or `group/subject`; \
                 {nearest}",
                one.place,
                one.key.escape_debug()
            ));
        }
    }
}

/// Everything that a handler is called in the file.
fn names_of(meta: &HandlerMeta) -> [Cow<'static, str>; 3] {
    let pair = format!("{}/{}", meta.group, meta.subject);
    [meta.name.into(), meta.group.into(), pair.into()]
}

impl Override {
    fn is_of(&self, meta: &HandlerMeta) -> bool {
        names_of(meta).iter().any(|name| *name == self.key)
    }
}

fn number(value: &DeValue<'_>) -> Option<u32> {
    number_of(value.as_integer()?)?.parse().ok()
}

fn in_quotes<'t>(name: &str, text: Option<&'t str>) -> Result<&'t str, String> {
    text.ok_or_else(|| {
        let setting = OF_HANDLERS.iter().find(|setting| setting.key == Some(name));
        let example = setting.map_or("", |setting| setting.example);
        format!("expected text in quotes, as in `{name} = {example}`")
    })
}
