//! The metrics without the feature `metrics`: none.

use std::time::{Duration, SystemTime};

use super::open_transactions::OpenTransactions;
use crate::{broker::SourceStatus, handler::HandlerMeta, outcome::Outcome, store::DeadLetterReason};

/// No metrics.
#[derive(Clone)]
pub(crate) struct Instruments;

/// No time.
pub(crate) struct Timer;

impl Timer {
    pub(crate) fn start() -> Self {
        Self
    }
}

impl Instruments {
    pub(crate) fn new(_meta: &HandlerMeta) -> Self {
        Self
    }

    pub(crate) fn outcome(&self, _outcome: Outcome) {}

    pub(crate) fn attempt(&self) {}

    pub(crate) fn dead_letter(&self, _reason: DeadLetterReason) {}

    pub(crate) fn ack_failed(&self) {}

    pub(crate) fn payload_mismatch(&self) {}

    pub(crate) fn handled(&self, _timer: &Timer) {}

    pub(crate) fn committed(&self, _published_at: Option<SystemTime>) {}

    pub(crate) fn leased(&self) {}

    pub(crate) fn released(&self) {}

    /// Never returns.
    pub(crate) async fn sample(&self, _open: &OpenTransactions, _status: SourceStatus) {
        std::future::pending::<()>().await;
    }
}

/// No metrics of an outbox.
pub(crate) struct OutboxInstruments;

impl OutboxInstruments {
    pub(crate) fn new(_database: &str) -> Self {
        Self
    }

    pub(crate) fn oldest(&self, _age: Duration) {}

    pub(crate) fn pending(&self, _messages: u64) {}

    pub(crate) fn published(&self, _messages: u64) {}

    pub(crate) fn parked(&self, _messages: u64) {}
}
