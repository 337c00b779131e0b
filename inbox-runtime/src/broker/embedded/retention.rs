//! How long messages that every group has settled are kept.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use super::clock::millis;

/// How long, unless it is said otherwise.
const DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

/// What stands for no end, in milliseconds: whatever is too long for the column.
const FOREVER: i64 = i64::MAX;

/// How long messages are kept after their last acknowledgement.
#[derive(Debug)]
pub(super) struct Keep(AtomicI64);

impl Default for Keep {
    fn default() -> Self {
        Self(AtomicI64::new(millis(DEFAULT)))
    }
}

impl Keep {
    /// Sets it; [`Duration::MAX`] is for ever.
    pub(super) fn set(&self, keep: Duration) {
        self.0.store(millis(keep), Ordering::Relaxed);
    }

    /// In milliseconds; `None` is for ever.
    pub(super) fn get(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&keep| keep != FOREVER)
    }
}

/// What a URL says behind `?`: `keep=1h`, or `keep=forever`, which is [`Duration::MAX`]. `None` if it says nothing of it. The error
/// says what to write.
pub(super) fn parse(query: &str) -> Result<Option<Duration>, String> {
    let mut keep = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name != "keep" {
            // Neither its name nor its value is repeated: who knows what was meant.
            return Err(
                "the URL of the embedded broker has another parameter than `keep`; write for example \
                        embedded:broker.db?keep=1h"
                    .to_owned(),
            );
        }
        let time = match value {
            "forever" => Duration::MAX,
            _ => humantime::parse_duration(value).map_err(|_| {
                "the URL of the embedded broker says for how long messages are kept in a way that can't be read; write a \
                 time, as in embedded:broker.db?keep=1h, or embedded:broker.db?keep=forever"
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
    fn a_url_says_how_long_messages_are_kept() {
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
