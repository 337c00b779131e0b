//! How long settled messages are kept.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use super::clock::millis;

const DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

/// Stands for no limit, in milliseconds: what is too long for the column.
const FOREVER: i64 = i64::MAX;

/// How long a message is kept after its last acknowledgement.
#[derive(Debug)]
pub(super) struct Retention(AtomicI64);

impl Default for Retention {
    fn default() -> Self {
        Self(AtomicI64::new(millis(DEFAULT)))
    }
}

impl Retention {
    /// Sets the time; [`Duration::MAX`] is for ever.
    pub(super) fn set(&self, keep: Duration) {
        self.0.store(millis(keep), Ordering::Relaxed);
    }

    /// In milliseconds; `None` is for ever.
    pub(super) fn get(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&keep| keep != FOREVER)
    }
}

/// Parses the query of a URL: `keep=1h`, or `keep=forever`, which is [`Duration::MAX`]; `None` if it is empty. The
/// error says what to write.
pub(super) fn parse(query: &str) -> Result<Option<Duration>, String> {
    let mut keep = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name != "keep" {
            // Neither name nor value is repeated: they may be secret.
            return Err(
                "the URL of the embedded broker has another parameter than `keep`; write for example \
                 embedded:broker.db?keep=1h"
                    .to_owned(),
            );
        }
        let time = match value {
            "forever" => Duration::MAX,
            _ => humantime::parse_duration(value).map_err(|_| {
                "the `keep` in the URL of the embedded broker is no duration; write for example embedded:broker.db?keep=1h or \
                 embedded:broker.db?keep=forever"
                    .to_owned()
            })?,
        };
        if keep.replace(time).is_some() {
            return Err("the URL of the embedded broker has `keep` twice; write it once".to_owned());
        }
    }
    Ok(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keep_of_a_url_is_parsed() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("keep=forever"), Ok(Some(Duration::MAX)));
        assert_eq!(parse("keep=1h"), Ok(Some(Duration::from_secs(3600))));
        assert_eq!(parse("keep=0s"), Ok(Some(Duration::ZERO)));
        for wrong in ["keep", "keep=", "keep=soon", "keep=-1h", "kept=1h", "keep=1h&keep=2h"] {
            let why = parse(wrong).expect_err(wrong);
            assert!(why.contains("keep"), "{wrong}: {why}");
        }
        let why = parse("token=hunter2").expect_err("unknown");
        assert!(!why.contains("hunter2"), "{why}");
    }
}
