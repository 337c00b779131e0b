//! The pipeline of one handler: everything that it needs to run, and what it shows of itself.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    availability::Availability, lease_keeper::LeaseKeeper, pending_refunds::PendingRefunds, progress::ProgressTracker,
    running::Running, solo_gate::SoloGate, strikes::Strikes,
};
use crate::{
    broker::DynBroker,
    counters::Counters,
    extract::States,
    handler::HandlerMeta,
    outbox_watch::OutboxWatch,
    registry::Decode,
    store::{Records, Store},
    telemetry::{Instruments, OpenTransactions},
    warnings::Warnings,
};

/// One handler with everything that it needs to run.
pub(crate) struct Pipeline<S: Store> {
    pub(crate) meta: HandlerMeta,
    pub(crate) decode: Decode<S>,
    pub(crate) store: S,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) states: Arc<States>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) status: PipelineStatus,
    pub(crate) refunds: PendingRefunds,
    pub(crate) strikes: Strikes,
    pub(crate) running: Running,
    /// Dead letters of its group are due for a replay.
    pub(crate) replays_due: Notify,
    /// Cancelled when the inbox has stopped: handlers that still run are dropped, or left behind.
    pub(crate) stopped: CancellationToken,
    pub(crate) gate: SoloGate,
    pub(crate) instruments: Instruments,
    /// Where what it publishes is to go.
    pub(crate) broker: DynBroker,
    /// The outbox that it publishes to, if it does.
    pub(crate) outbox: Option<Arc<OutboxWatch>>,
}

/// What a running pipeline shows of itself. Clones share it.
#[derive(Clone)]
pub(crate) struct PipelineStatus {
    pub(crate) availability: Availability,
    pub(crate) leases: LeaseKeeper,
    pub(crate) open: OpenTransactions,
    pub(crate) progress: ProgressTracker,
    /// Of the whole inbox.
    pub(crate) warnings: Warnings,
}
