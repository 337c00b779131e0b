//! What the handlers of another process are to do, as one line of text.

use std::{str::FromStr, time::Duration};

use crate::probe::{Call, Step};

/// What handlers do, message by message: rules `<id>=<action>` or `<action>`, separated by commas, of which the first that
/// fits holds. A message that none fits succeeds.
///
/// Actions are `ok`, `fail`, `fail:<probability>`, `permanent`, `sleep:<duration>`, `block:<duration>` (of
/// its thread), `abort` (of the process).
#[derive(Clone, Debug, Default)]
pub struct Script(Vec<(Option<String>, Action)>);

#[derive(Clone, Debug)]
enum Action {
    Ok,
    Fail(f64),
    Permanent,
    Sleep(Duration),
    Block(Duration),
    Abort,
}

impl Script {
    /// What that run of a handler is to do.
    #[must_use]
    pub fn step(&self, call: &Call) -> Step {
        let rule = self
            .0
            .iter()
            .find(|(id, _)| id.as_ref().is_none_or(|id| *id == call.id));
        match rule.map_or(&Action::Ok, |(_, action)| action) {
            Action::Fail(probability) if fastrand::f64() < *probability => Step::Fail("as the script says"),
            Action::Ok | Action::Fail(_) => Step::Ok,
            Action::Permanent => Step::Permanent("as the script says"),
            Action::Sleep(time) => Step::Sleep(*time),
            Action::Block(time) => Step::Block(*time),
            Action::Abort => Step::Abort,
        }
    }
}

impl FromStr for Script {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
        let rule = |rule: &str| match rule.split_once('=') {
            Some((id, action)) => Ok((Some(id.to_owned()), action.parse()?)),
            None => Ok((None, rule.parse()?)),
        };
        rules.map(rule).collect::<anyhow::Result<_>>().map(Self)
    }
}

impl FromStr for Action {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text.split_once(':').unwrap_or((text, "")) {
            ("ok", "") => Self::Ok,
            ("fail", "") => Self::Fail(1.0),
            ("fail", probability) => Self::Fail(probability.parse()?),
            ("permanent", "") => Self::Permanent,
            ("sleep", time) => Self::Sleep(humantime::parse_duration(time)?),
            ("block", time) => Self::Block(humantime::parse_duration(time)?),
            ("abort", "") => Self::Abort,
            _ => anyhow::bail!("`{text}` is no action of a script"),
        })
    }
}
