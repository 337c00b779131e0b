//! Counts the outcomes of deliveries, and their acknowledgements.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::outcome::Outcome;

/// How many deliveries had which outcome, and how many were acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Handled, with the transaction committed.
    pub processed: u64,
    /// The handler said that there was nothing to do.
    pub skipped: u64,
    /// Handled before.
    pub duplicate: u64,
    /// Held by another consumer, or waiting for a lock.
    pub locked: u64,
    /// The handler failed.
    pub failed: u64,
    /// Dead-lettered.
    pub dead_lettered: u64,
    /// Deferred because the database or the broker failed.
    pub deferred: u64,
    /// Acknowledged at the broker, whatever the outcome.
    pub acked: u64,
    /// Acknowledgements that failed; those messages are redelivered, and are duplicates where they were claimed.
    pub ack_failures: u64,
    /// Those of `acked` that the broker had not confirmed when the inbox ended (Kafka's are committed a moment later); those
    /// messages may be redelivered, and are duplicates where they were claimed. 0 while it runs.
    pub unconfirmed: u64,
}

impl Report {
    /// How many deliveries had that outcome.
    #[must_use]
    pub const fn count(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Processed => self.processed,
            Outcome::Skipped => self.skipped,
            Outcome::Duplicate => self.duplicate,
            Outcome::Locked => self.locked,
            Outcome::Failed => self.failed,
            Outcome::DeadLettered => self.dead_lettered,
            Outcome::Deferred => self.deferred,
        }
    }

    /// What has been counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            processed: self.processed - earlier.processed,
            skipped: self.skipped - earlier.skipped,
            duplicate: self.duplicate - earlier.duplicate,
            locked: self.locked - earlier.locked,
            failed: self.failed - earlier.failed,
            dead_lettered: self.dead_lettered - earlier.dead_lettered,
            deferred: self.deferred - earlier.deferred,
            acked: self.acked - earlier.acked,
            ack_failures: self.ack_failures - earlier.ack_failures,
            unconfirmed: self.unconfirmed - earlier.unconfirmed,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in Outcome::ALL {
            write!(f, "{outcome}={} ", self.count(outcome))?;
        }
        write!(f, "acked={} ack_failures={}", self.acked, self.ack_failures)?;
        match self.unconfirmed {
            0 => Ok(()),
            unconfirmed => write!(f, " unconfirmed={unconfirmed}"),
        }
    }
}

/// The counters behind a [`Report`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    acked: AtomicU64,
    ack_failures: AtomicU64,
    unconfirmed: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_ack(&self, success: bool) {
        let counter = if success { &self.acked } else { &self.ack_failures };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts acknowledgements that the broker hasn't confirmed when the inbox ends.
    pub(crate) fn count_unconfirmed(&self, acknowledgements: u64) {
        self.unconfirmed.fetch_add(acknowledgements, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> Report {
        let of = |outcome: Outcome| self.outcomes[outcome as usize].load(Ordering::Relaxed);
        Report {
            processed: of(Outcome::Processed),
            skipped: of(Outcome::Skipped),
            duplicate: of(Outcome::Duplicate),
            locked: of(Outcome::Locked),
            failed: of(Outcome::Failed),
            dead_lettered: of(Outcome::DeadLettered),
            deferred: of(Outcome::Deferred),
            acked: self.acked.load(Ordering::Relaxed),
            ack_failures: self.ack_failures.load(Ordering::Relaxed),
            unconfirmed: self.unconfirmed.load(Ordering::Relaxed),
        }
    }
}
