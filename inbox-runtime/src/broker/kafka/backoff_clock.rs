//! The clock of redelivery delays, which tests can advance.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The system's monotonic clock plus an offset.
#[derive(Debug, Default)]
pub(super) struct BackoffClock {
    offset_ms: AtomicU64,
}

impl BackoffClock {
    pub(super) fn now(&self) -> Instant {
        let offset = Duration::from_millis(self.offset_ms.load(Ordering::Relaxed));
        let now = Instant::now();
        now.checked_add(offset).unwrap_or(now)
    }

    pub(super) fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.offset_ms.fetch_add(millis, Ordering::Relaxed);
    }
}
