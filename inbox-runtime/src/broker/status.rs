//! A source's status for health and metrics: which of its parts are blocked, and its lag.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use crate::excerpt::excerpt;

/// A source's status, for health and metrics. Clones share it, so that it can be read while the source is being pulled.
///
/// ```
/// use inbox_runtime::SourceStatus;
///
/// let status = SourceStatus::default();
/// status.set_blocked("orders:3", "it has no leader");
/// assert_eq!(status.reasons(), ["orders:3 waits: it has no leader"]);
/// status.back_off("orders:4", "offset 17 failed and is tried again in 4s");
/// assert_eq!(status.back_offs(), ["orders:4 backs off: offset 17 failed and is tried again in 4s"]);
/// status.clear_blocked("orders:3");
/// assert!(status.reasons().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct SourceStatus(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    blocked: BTreeMap<String, String>,
    backing_off: BTreeMap<String, String>,
    lag: Option<u64>,
    unconfirmed: u64,
}

impl SourceStatus {
    /// Marks a part of the source, such as a partition, as unreadable: something is missing or broken. The handler is
    /// not ready while a part is blocked. At most 8 KiB of the reason are kept. For a message that failed there is
    /// [`back_off`](Self::back_off).
    pub fn set_blocked(&self, part: impl Into<String>, why: impl Into<String>) {
        self.lock().blocked.insert(part.into(), excerpt(why.into()));
    }

    /// Marks a part of the source, such as a partition, as waiting for the back-off of a message that failed. It is
    /// shown in health and leaves the handler ready: the other parts are read. At most 8 KiB of the reason are kept.
    pub fn back_off(&self, part: impl Into<String>, why: impl Into<String>) {
        self.lock().backing_off.insert(part.into(), excerpt(why.into()));
    }

    /// Marks a part as readable: it is neither blocked nor backing off.
    pub fn clear_blocked(&self, part: &str) {
        let mut inner = self.lock();
        inner.blocked.remove(part);
        inner.backing_off.remove(part);
    }

    /// Sets how many messages the *group* hasn't acknowledged, over all its processes: those in flight and those never
    /// delivered to it. `None` if that is unknown or out of date. Brokers refresh it in the background, at most every 5
    /// seconds.
    pub fn set_lag(&self, messages: Option<u64>) {
        self.lock().lag = messages;
    }

    /// Sets how many acknowledgements the broker hasn't confirmed as durable, those included that it never will, since
    /// their messages were redelivered to another consumer. For brokers whose [`Lease::ack`](crate::Lease::ack) returns
    /// before that.
    pub fn set_unconfirmed(&self, acknowledgements: u64) {
        self.lock().unconfirmed = acknowledgements;
    }

    /// How many acknowledgements the broker hasn't confirmed. Their messages may be redelivered.
    #[must_use]
    pub fn unconfirmed(&self) -> u64 {
        self.lock().unconfirmed
    }

    /// How many messages the group has not acknowledged; `None` if unknown.
    #[must_use]
    pub fn lag(&self) -> Option<u64> {
        self.lock().lag
    }

    /// Every blocked part, with the reason.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let inner = self.lock();
        let reasons = inner.blocked.iter().map(|(part, why)| format!("{part} waits: {why}"));
        reasons.collect()
    }

    /// Every part that is backing off, with the reason.
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
        self.0.lock()
    }
}
