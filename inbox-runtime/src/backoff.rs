//! How long a failed message waits before it is redelivered.

use std::time::Duration;

/// How long a failed message waits before it is redelivered: a random time between nothing and a bound that doubles with
/// each attempt, from `first` up to `max` (exponential back-off with full jitter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The bound after the first attempt.
    pub first: Duration,
    /// The largest bound.
    pub max: Duration,
}

impl Backoff {
    /// `1s..5m`.
    pub const DEFAULT: Self = Self {
        first: Duration::from_secs(1),
        max: Duration::from_secs(300),
    };

    /// The bound on the wait after `attempts` failed attempts (from 1).
    #[must_use]
    pub fn bound(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }

    /// A wait after `attempts` failed attempts: random, at most [`bound`](Self::bound).
    #[must_use]
    pub fn delay(&self, attempts: u32) -> Duration {
        self.bound(attempts).mul_f64(fastrand::f64())
    }

    /// The same, never shorter than `first`: full jitter may be nothing at all.
    pub(crate) fn pause(&self, attempts: u32) -> Duration {
        self.first.max(self.delay(attempts))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backoffs() -> impl Strategy<Value = Backoff> {
        (1_u64..10_000, 0_u64..1_000_000).prop_map(|(first, more)| Backoff {
            first: Duration::from_millis(first),
            max: Duration::from_millis(first + more),
        })
    }

    proptest! {
        #[test]
        fn the_bound_doubles_until_the_largest(backoff in backoffs(), attempts in 1_u32..200) {
            let bound = backoff.bound(attempts);
            prop_assert!(backoff.first <= bound && bound <= backoff.max);
            let next = backoff.bound(attempts + 1);
            prop_assert_eq!(next, bound.saturating_mul(2).min(backoff.max));
        }

        #[test]
        fn the_delay_is_between_nothing_and_the_bound(backoff in backoffs(), attempts in 0_u32..=u32::MAX) {
            prop_assert!(backoff.delay(attempts) <= backoff.bound(attempts));
        }

        /// Full jitter: of many delays some are in the lower half and some in the upper one.
        #[test]
        fn the_delay_is_spread_over_the_whole_range(backoff in backoffs(), attempts in 1_u32..40) {
            let half = backoff.bound(attempts) / 2;
            let delays: Vec<_> = (0..200).map(|_| backoff.delay(attempts)).collect();
            prop_assert!(delays.iter().any(|delay| *delay < half));
            prop_assert!(delays.iter().any(|delay| *delay >= half));
        }
    }

    #[test]
    fn the_first_attempt_waits_no_longer_than_the_first_bound() {
        assert_eq!(Backoff::DEFAULT.bound(1), Duration::from_secs(1));
        assert_eq!(Backoff::DEFAULT.bound(0), Duration::from_secs(1));
        assert_eq!(Backoff::DEFAULT.bound(9), Duration::from_secs(256));
        assert_eq!(Backoff::DEFAULT.bound(10), Duration::from_secs(300));
        assert_eq!(Backoff::DEFAULT.bound(u32::MAX), Duration::from_secs(300));
    }
}
