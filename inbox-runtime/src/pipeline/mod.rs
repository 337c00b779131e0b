//! Takes one delivery from its decoding to its settlement.
//!
//! ```text
//!  decode ─▶ attempts ─▶ transaction: begin ─▶ claim ─▶ handle ─▶ outbox, seal, commit ───────┐
//!    │          │                       │         │        │                    │              │
//!    ▼          ▼                       ▼         ▼        ▼                    ▼              ▼
//!  rejected   exhausted, busy        outage   duplicate,  failed          broken, lost      committed
//!    └──────────┴───────────────────────┴──── locked ──────┴────────────────────┴──────────────┘
//!                                                │ how it ended
//!                                                ▼
//!         resolve ◀──▶ disposition (pure): acknowledge, nak, retry in place, or dead-letter
//!                                                │
//!                                                ▼
//!                                              settle
//! ```
//!
//! [`execute`](Pipeline::execute) walks this path once, up to how the delivery is to be settled. Until it is acknowledged the
//! broker redelivers it, whatever happens. `consumer` does this for many deliveries at a time.

use tracing::Instrument;

use crate::{
    failpoint::failpoint,
    handler::AckStrategy,
    invocation::Invocation,
    store::Store,
    telemetry::{self, Timer},
};

mod ack_first;
mod attempts;
mod availability;
mod dead_letter;
mod decode;
mod disposition;
mod execution;
mod job;
mod lease_keeper;
mod lookahead;
mod pending_refunds;
mod progress;
mod rejection;
mod resolve;
mod reused_position;
mod running;
mod settle;
mod solo_gate;
mod state;
mod strikes;
mod transaction;

pub(crate) use availability::{Availability, OUTAGE_BACKOFF};
pub(crate) use decode::Decoded;
pub(crate) use disposition::Disposition;
pub(crate) use job::{Job, Replay};
pub(crate) use lease_keeper::{LeaseGuard, LeaseKeeper};
pub(crate) use lookahead::{Lookahead, NoLookahead};
pub(crate) use pending_refunds::PendingRefunds;
pub(crate) use progress::ProgressTracker;
pub(crate) use running::Running;
pub(crate) use solo_gate::SoloGate;
pub(crate) use state::{Pipeline, PipelineStatus};
pub(crate) use strikes::Strikes;

use disposition::{End, TxOutcome};
use execution::{Execution, release};
use rejection::RejectionText;
use solo_gate::GatePass;

/// How many fresh transactions a message gets at once when the database asks for one (serialization failure, deadlock).
const ROUNDS: u32 = 3;

impl<S: Store> Pipeline<S> {
    /// Executes one delivery, which may have been decoded early. `lookahead` prefetches the next message, so that the database
    /// can go from this transaction to that one without a pause. This one is not settled yet, except that at_most_once
    /// acknowledges before it begins.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it rolls back or has committed; the message was not acknowledged (at_most_once aside).
    pub(crate) async fn execute(
        &self,
        session: &mut Option<S::Session>,
        job: &mut Job,
        decoded: Option<Decoded<S>>,
        lookahead: &mut dyn Lookahead,
    ) -> Disposition {
        let (id, early) = match decoded {
            Some(decoded) => (Ok(decoded.id), Some((decoded.invocation, decoded.pass))),
            None => (self.identify(&job.delivery), None),
        };
        let span = telemetry::span(&self.meta, &job.delivery, id.as_deref().ok());
        let timer = Timer::start();
        job.span = span.clone();
        // Until the handler's future is dropped.
        let _running = self.running.begin(id.as_deref().unwrap_or(&job.delivery.position));
        job.pause();
        let key = self.attempt_key(job, id.as_deref().ok());
        let (id, rejected) = match id {
            Ok(id) => (Some(id), None),
            Err(rejected) => (None, Some(rejected)),
        };
        let mut execution = Execution {
            pipeline: self,
            job,
            key,
            id,
        };
        let executed = execution.run(session, rejected, early, lookahead);
        let disposition = executed.instrument(span.clone()).await;
        span.record("outcome", disposition.outcome.as_str());
        self.instruments.handled(&timer);
        disposition
    }
}

impl<S: Store> Execution<'_, S> {
    /// Walks the steps in order, up to how the delivery is to be settled.
    async fn run(
        &mut self,
        session: &mut Option<S::Session>,
        rejected: Option<RejectionText>,
        early: Option<(Invocation<S>, GatePass)>,
        lookahead: &mut dyn Lookahead,
    ) -> Disposition {
        let (invocation, pass) = early.unzip();
        let admitted = match pass {
            Some(pass) => Ok(pass),
            None => self.admit(session).await,
        };
        // The pass is held until the message's fate is decided.
        let (_pass, end) = match (admitted, rejected) {
            (Ok(pass), None) => (Some(pass), self.handle_in_tx(session, invocation, lookahead).await),
            (Ok(pass), Some(rejected)) => (Some(pass), End::Rejected(rejected)),
            (Err(end), _) => (None, end),
        };
        self.resolve(end).await
    }

    /// Decodes the message and runs its handler in a transaction; in a fresh one if the database asks for it.
    async fn handle_in_tx(
        &mut self,
        session: &mut Option<S::Session>,
        mut early: Option<Invocation<S>>,
        lookahead: &mut dyn Lookahead,
    ) -> End {
        for round in 1.. {
            let id = self.id.as_deref().unwrap_or_default();
            let decoded = match early.take() {
                Some(invocation) => Ok(Ok(invocation)),
                None => self.pipeline.decode(&self.job.delivery, id),
            };
            let invocation = match decoded {
                Ok(Ok(invocation)) => invocation,
                Ok(Err(rejected)) => return End::Rejected(rejected),
                Err(panic) => return End::Undecodable(panic),
            };
            if round == 1
                && let Err(end) = self.before_first_transaction(session).await
            {
                return end;
            }
            let is_retried = round < ROUNDS && self.meta().ack != AckStrategy::AtMostOnce;
            match self.transaction(session, invocation, lookahead).await {
                TxOutcome::Duplicate(kept) if self.leave_reused_position(kept) => {}
                TxOutcome::RetryTx(_) | TxOutcome::StaleConnection(_) if is_retried => {}
                outcome => return End::Tx(outcome),
            }
        }
        unreachable!("the last round ends it")
    }

    /// The last check of the lease, and the acknowledgement of at_most_once. The error is the message's end in place of them.
    async fn before_first_transaction(&mut self, session: &mut Option<S::Session>) -> Result<(), End> {
        failpoint!("after_decode");
        if !self.job.lease.is_ours() {
            release(session).await;
            return Err(End::LeaseLost);
        }
        if self.is_at_most_once() {
            self.ack_first(session).await?;
        }
        Ok(())
    }
}
