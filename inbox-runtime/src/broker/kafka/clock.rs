//! The clock of messages that wait, which a test can put forward.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The system's monotonic clock, with an offset.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Milliseconds.
    offset: AtomicU64,
}

impl Clock {
    pub(super) fn now(&self) -> Instant {
        let offset = Duration::from_millis(self.offset.load(Ordering::Relaxed));
        let now = Instant::now();
        now.checked_add(offset).unwrap_or(now)
    }

    pub(super) fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.offset.fetch_add(millis, Ordering::Relaxed);
    }
}
