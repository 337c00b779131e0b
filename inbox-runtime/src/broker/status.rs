//! What a source says about itself beside its deliveries: what waits in it, and how much is left.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::excerpt::excerpt;

/// What a source says about itself, for health and metrics. Clones share it, so that it can be read while the source is
/// being pulled.
///
/// ```
/// use inbox_runtime::SourceStatus;
///
/// let status = SourceStatus::default();
/// status.wait("orders:3", "it has no leader");
/// assert_eq!(status.reasons(), ["orders:3 waits: it has no leader"]);
/// status.back_off("orders:4", "offset 17 failed and is tried again in 4s");
/// assert_eq!(status.back_offs(), ["orders:4 backs off: offset 17 failed and is tried again in 4s"]);
/// status.go_on("orders:3");
/// assert!(status.reasons().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct SourceStatus(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<String, String>,
    backing_off: BTreeMap<String, String>,
    lag: Option<u64>,
    unconfirmed: u64,
}

impl SourceStatus {
    /// Says that a part of the source, such as a partition, can't be read, and why, of which at most 8 KiB are kept. The handler is
    /// not ready while one can't: for what is missing or broken. For a message that failed there is
    /// [`back_off`](Self::back_off).
    pub fn wait(&self, part: impl Into<String>, why: impl Into<String>) {
        self.lock().waiting.insert(part.into(), excerpt(why.into()));
    }

    /// Says that a part of the source, such as a partition, waits for the back-off of a message that failed, and which, of which
    /// at most 8 KiB are kept. It is shown and makes nobody unready: the others go on.
    pub fn back_off(&self, part: impl Into<String>, why: impl Into<String>) {
        self.lock().backing_off.insert(part.into(), excerpt(why.into()));
    }

    /// Says that a part goes on, whatever it waited for.
    pub fn go_on(&self, part: &str) {
        let mut inner = self.lock();
        inner.waiting.remove(part);
        inner.backing_off.remove(part);
    }

    /// Says how many messages the *group* hasn't acknowledged yet, over all its processes: those that are out and those that
    /// were never delivered to it. `None` if that isn't known, or was asked too long ago to be right. It is asked in the
    /// background, at most every 5 seconds.
    pub fn set_lag(&self, messages: Option<u64>) {
        self.lock().lag = messages;
    }

    /// Says of how many acknowledgements the broker hasn't confirmed yet that it has them for good, or never will, since
    /// their messages went to somebody else. For brokers whose [`Lease::ack`](crate::Lease::ack) returns before.
    pub fn set_unconfirmed(&self, acknowledgements: u64) {
        self.lock().unconfirmed = acknowledgements;
    }

    /// How many acknowledgements the broker hasn't confirmed. Their messages may come again.
    #[must_use]
    pub fn unconfirmed(&self) -> u64 {
        self.lock().unconfirmed
    }

    /// How many messages the group has not acknowledged yet, where that is known.
    #[must_use]
    pub fn lag(&self) -> Option<u64> {
        self.lock().lag
    }

    /// Every part that waits, with the reason.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let inner = self.lock();
        let reasons = inner.waiting.iter().map(|(part, why)| format!("{part} waits: {why}"));
        reasons.collect()
    }

    /// Every part that waits for a back-off, with the reason.
    #[must_use]
    pub fn back_offs(&self) -> Vec<String> {
        let inner = self.lock();
        let reasons = inner
            .backing_off
            .iter()
            .map(|(part, why)| format!("{part} backs off: {why}"));
        reasons.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
