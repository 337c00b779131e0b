//! The broker's clock, in milliseconds: the system's, which tests can stop and shift.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// A clock with an offset.
#[derive(Debug, Default)]
pub(super) struct BrokerClock {
    offset: AtomicI64,
    /// When it was stopped; from then on only [`shift`](Self::shift) moves it.
    stopped: OnceLock<i64>,
}

impl BrokerClock {
    /// Milliseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        let time = self.stopped.get().copied().unwrap_or_else(system);
        time.saturating_add(self.offset.load(Ordering::Relaxed))
    }

    #[cfg(feature = "testing")]
    pub(super) fn stop(&self) {
        self.stopped.get_or_init(system);
    }

    pub(super) fn shift(&self, millis: i64) {
        let shifted = |offset: i64| Some(offset.saturating_add(millis));
        // It can't fail: the closure never returns `None`.
        let _ = self.offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shifted);
    }
}

fn system() -> i64 {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => millis(since),
        Err(before) => -millis(before.duration()),
    }
}

/// A duration in milliseconds, saturating. Rounded up: a delay may last longer, never shorter.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// The duration from `now` to `then`, or zero.
pub(super) fn until(then: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(then.saturating_sub(now)).unwrap_or(0))
}

/// The time of a stored number of milliseconds.
pub(super) fn time(millis: i64) -> Option<SystemTime> {
    let distance = Duration::from_millis(millis.unsigned_abs());
    if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    }
}
