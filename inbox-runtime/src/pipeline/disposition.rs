//! Decides a message's fate: what follows from how its handling ended, by its handler's policy.
//!
//! [`decide`] is a pure function. Where it lacks a fact it asks for it, and is called again with the fact; `resolve` finds
//! out the facts and carries out the decision.

use std::time::Duration;

use super::{
    availability::OUTAGE_BACKOFF,
    rejection::RejectionText,
    strikes::{Fault, OnStrike},
};
use crate::{
    backoff::Backoff,
    error_chain::text,
    excerpt::excerpt,
    handler::{AckStrategy, HandlerMeta},
    outcome::{Handled, HandlerError, Outcome, RetryDecision},
    store::{DeadLetterReason, Fingerprint, StoreError},
};

/// How one transaction ended, or an attempt to begin it.
pub(super) enum TxOutcome {
    Committed(Handled),
    /// The group has handled a message of this id, which had this fingerprint.
    Duplicate(Fingerprint),
    /// The handler failed, and the database had no part in it.
    Failed(HandlerError),
    /// The handler ended the transaction itself.
    TxBroken(String),
    /// Somebody else holds what the claim needs.
    Locked(String),
    /// The database can't store the message's own values.
    Unstorable(String),
    /// The database asks for a fresh transaction.
    RetryTx(String),
    /// The database asks for a fresh connection; if that doesn't help, the handler failed.
    StaleConnection(HandlerError),
    /// A table, a column or a right that the handler needs is missing.
    DeploymentFault(HandlerError),
    /// The handler failed as in an outage, though its transaction was alive.
    SuspectedOutage(HandlerError),
    /// The connection was lost, or a statement of the runtime failed.
    ConnectionLost(String),
}

impl From<StoreError> for TxOutcome {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked(_) => Self::Locked(text(&error)),
            StoreError::Message(_) => Self::Unstorable(text(&error)),
            StoreError::Retry(_) => Self::RetryTx(text(&error)),
            StoreError::TablesMissing(_) | StoreError::Unavailable(_) => Self::ConnectionLost(text(&error)),
        }
    }
}

/// How the handling of a delivery ended, or the writing of its dead letter.
pub(super) enum End {
    Tx(TxOutcome),
    /// It has no usable id, or an extractor rejected it.
    Rejected(RejectionText),
    /// An extractor panicked.
    Undecodable(HandlerError),
    /// Its attempts were used up before; the text is the error of the last one.
    Exhausted {
        attempts: u32,
        error: String,
    },
    /// It was dead-lettered before, and only its acknowledgement was lost.
    AlreadyDeadLettered,
    /// It must wait before it begins: for a lock, or to run alone.
    Busy(String),
    /// Before its handler began, the delivery went to another consumer.
    LeaseLost,
    /// The acknowledgement that comes before the handler (at_most_once) was refused: another consumer has the delivery.
    LeaseLostAtAck(String),
    /// That acknowledgement failed.
    AckFailed(String),
    /// A step beside the handler's transaction failed.
    StepFailed(String),
    DeadLettered,
    /// The dead letter could not be written. `error` is the error that is in it.
    DeadLetterFailed {
        reason: DeadLetterReason,
        error: String,
        cause: String,
    },
    /// The dead letter was not written: another process replays the message by now.
    ReplayLeaseLost,
}

impl End {
    /// The error, for logs, health and the dead letter, of at most 8 KiB; empty where there is none.
    pub(super) fn error(&self) -> String {
        use TxOutcome::{
            Committed, ConnectionLost, DeploymentFault, Duplicate, Failed, Locked, RetryTx, StaleConnection,
            SuspectedOutage, TxBroken, Unstorable,
        };
        match self {
            Self::Tx(Failed(error) | StaleConnection(error) | DeploymentFault(error) | SuspectedOutage(error))
            | Self::Undecodable(error) => error.report(),
            Self::Tx(TxBroken(why) | Locked(why) | Unstorable(why) | RetryTx(why) | ConnectionLost(why))
            | Self::Exhausted { error: why, .. }
            | Self::Busy(why)
            | Self::LeaseLostAtAck(why)
            | Self::AckFailed(why)
            | Self::StepFailed(why) => excerpt(why.clone()),
            Self::Rejected(rejected) => excerpt(rejected.error.clone()),
            Self::DeadLetterFailed { cause, .. } => format!("the dead letter could not be written: {cause}"),
            Self::Tx(Committed(_) | Duplicate(_))
            | Self::AlreadyDeadLettered
            | Self::LeaseLost
            | Self::DeadLettered
            | Self::ReplayLeaseLost => String::new(),
        }
    }

    /// Whether the message may be a duplicate all the same, because no transaction has claimed it.
    const fn is_unclaimed(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::Undecodable(_) | Self::Exhausted { .. })
    }
}

/// What a handler declares about the fate of its messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) ack: AckStrategy,
    /// `None` is unlimited.
    pub(super) max_attempts: Option<u32>,
}

impl Policy {
    pub(super) const fn of(meta: &HandlerMeta) -> Self {
        Self {
            ack: meta.ack,
            max_attempts: meta.max_attempts,
        }
    }
}

/// What is known of a message and its handling. What is `None` is not known yet, and is asked for if it matters.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) fingerprint: Fingerprint,
    pub(super) redelivered: bool,
    /// How often it was delivered, this time included; 1 where the broker doesn't count.
    pub(super) deliveries: u32,
    /// The strikes that it has.
    pub(super) strikes: u32,
    pub(super) inbox_row: Option<InboxRow>,
    /// The answer of the database to a probe; the error is why it is unavailable.
    pub(super) probe: Option<Result<(), String>>,
    /// What follows from the strike.
    pub(super) on_strike: Option<OnStrike>,
    /// The attempts so far, this one included.
    pub(super) attempts: Option<u32>,
}

/// The inbox row of the message's id.
#[derive(Clone, Copy, Debug)]
pub(super) enum InboxRow {
    Absent,
    /// The group has handled a message of this id, which had this fingerprint.
    Present(Fingerprint),
}

impl Facts {
    /// The fingerprint of the message that this one is a duplicate of, if it is one.
    pub(super) fn duplicate_of(&self, end: &End) -> Option<Fingerprint> {
        match (end, self.inbox_row) {
            (End::Tx(TxOutcome::Duplicate(kept)), _) => Some(*kept),
            (_, Some(InboxRow::Present(kept))) => Some(kept),
            _ => None,
        }
    }
}

/// What is decided about a message, or which fact that depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Find out whether its group has handled it.
    LookUp,
    /// Find out whether the database works.
    Probe,
    /// Count a strike of it.
    Strike(Fault),
    /// Count the attempt as failed.
    RecordFailure,
    /// Write a dead letter.
    DeadLetter(DeadLetterReason),
    /// That is its fate.
    Settle(Disposition),
}

/// The fate of a delivery: its outcome, and how it is settled at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disposition {
    pub(crate) outcome: Outcome,
    pub(crate) settlement: Settlement,
}

impl Disposition {
    /// It won't be redelivered.
    pub(crate) const fn is_acknowledged(self) -> bool {
        matches!(
            self.settlement,
            Settlement::Ack | Settlement::AckAgain | Settlement::AlreadyAcked
        )
    }

    pub(crate) const fn is_retried_in_place(self) -> bool {
        matches!(self.settlement, Settlement::RetryInPlace(_))
    }

    /// It was acknowledged before its handler failed: nobody handles it.
    pub(super) fn is_discarded(self) -> bool {
        self == DISCARDED
    }
}

/// How a delivery is settled at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Ack,
    /// Acknowledge it once more: it was done before, or may have been, and only its acknowledgement was lost.
    AckAgain,
    /// Nothing is left to do: it was acknowledged before its handler ran, or is another consumer's.
    AlreadyAcked,
    /// Nak it, to be redelivered after the delay.
    Nak(Delay),
    /// A worker keeps it and tries again once the cause may have passed. A one-shot job, which doesn't wait, naks it.
    RetryInPlace(Delay),
}

/// The time until a redelivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delay {
    Fixed(Duration),
    /// The handler's back-off after so many attempts.
    Backoff(u32),
    /// The back-off of an outage after so many deliveries.
    Outage(u32),
}

impl Delay {
    /// The time, drawn at random where it is a back-off.
    pub(super) fn draw(self, backoff: Backoff) -> Duration {
        match self {
            Self::Fixed(delay) => delay,
            Self::Backoff(attempts) => backoff.delay(attempts),
            Self::Outage(deliveries) => OUTAGE_BACKOFF.delay(deliveries),
        }
    }
}

const DISCARDED: Disposition = Disposition {
    outcome: Outcome::Failed,
    settlement: Settlement::AlreadyAcked,
};

/// Decides what becomes of a message, or which fact must be known first.
pub(super) fn decide(end: &End, policy: Policy, facts: &Facts) -> Decision {
    use AckStrategy::{AtMostOnce, ExactlyOnce};
    use Outcome::{DeadLettered, Locked};
    use Settlement::{AckAgain, AlreadyAcked, Nak};
    if end.is_unclaimed() && policy.ack == ExactlyOnce {
        match facts.inbox_row {
            None => return Decision::LookUp,
            Some(InboxRow::Present(kept)) => return duplicate(kept, facts),
            Some(InboxRow::Absent) => {}
        }
    }
    match (end, policy.ack) {
        (End::Tx(TxOutcome::Committed(handled)), AtMostOnce) => settle((*handled).into(), AlreadyAcked),
        (End::Tx(TxOutcome::Committed(handled)), ack) => settle((*handled).into(), acknowledge(ack, facts)),
        (End::Tx(TxOutcome::Duplicate(kept)), _) => duplicate(*kept, facts),
        (End::Tx(TxOutcome::Failed(error) | TxOutcome::StaleConnection(error)), _) => {
            failed(error.retry_decision(), policy, facts)
        }
        (End::Tx(TxOutcome::TxBroken(_)), _) => Decision::DeadLetter(DeadLetterReason::BrokenTransaction),
        (End::Tx(TxOutcome::Unstorable(_)) | End::Rejected(_), _) => Decision::DeadLetter(DeadLetterReason::Rejected),
        // It was acknowledged before its transaction began.
        (End::Tx(_), AtMostOnce) => Decision::Settle(DISCARDED),
        (End::Tx(TxOutcome::Locked(_)) | End::Busy(_), _) => {
            unless_outage(facts, || settle(Locked, Nak(Delay::Backoff(facts.deliveries))))
        }
        (End::Tx(TxOutcome::ConnectionLost(_)), _) => {
            suspect(Fault::ConnectionLost, RetryDecision::Backoff, policy, facts)
        }
        (End::Tx(TxOutcome::RetryTx(_)), _) => suspect(Fault::SuspectedOutage, RetryDecision::Backoff, policy, facts),
        (End::Tx(TxOutcome::SuspectedOutage(error)), _) => {
            suspect(Fault::SuspectedOutage, error.retry_decision(), policy, facts)
        }
        (End::Tx(TxOutcome::DeploymentFault(error)), _) => {
            suspect(Fault::Deployment, error.retry_decision(), policy, facts)
        }
        // It is not acknowledged yet, so it needn't be discarded; there is no second attempt either.
        (End::Undecodable(_), AtMostOnce) => Decision::DeadLetter(DeadLetterReason::Rejected),
        // A redelivery may help: another version of the program may get it.
        (End::Undecodable(error), _) => failed(error.retry_decision(), policy, facts),
        (End::Exhausted { .. }, _) => Decision::DeadLetter(DeadLetterReason::Exhausted),
        (End::AlreadyDeadLettered, _) => settle(DeadLettered, AckAgain),
        (End::LeaseLost, _) => settle(Locked, Nak(Delay::Fixed(Duration::ZERO))),
        (End::LeaseLostAtAck(_) | End::ReplayLeaseLost, _) => settle(Locked, AlreadyAcked),
        (End::AckFailed(_), _) => unavailable(facts),
        (End::DeadLettered, ack) => settle(DeadLettered, acknowledge(ack, facts)),
        // A message that was rejected was not acknowledged yet.
        (End::DeadLetterFailed { reason, .. }, AtMostOnce) if *reason != DeadLetterReason::Rejected => {
            Decision::Settle(DISCARDED)
        }
        (End::DeadLetterFailed { .. } | End::StepFailed(_), _) => unless_outage(facts, || nak_uncounted(facts)),
    }
}

const fn settle(outcome: Outcome, settlement: Settlement) -> Decision {
    Decision::Settle(Disposition { outcome, settlement })
}

/// The acknowledgement of a message that is done. Unless it was claimed, nothing tells whether it was done before.
fn acknowledge(ack: AckStrategy, facts: &Facts) -> Settlement {
    match ack {
        AckStrategy::AtLeastOnce | AckStrategy::OnPersist if facts.redelivered => Settlement::AckAgain,
        _ => Settlement::Ack,
    }
}

/// The group has handled a message of this id. The fingerprint tells whether it may have been this one.
fn duplicate(kept: Fingerprint, facts: &Facts) -> Decision {
    if kept.same_subject(facts.fingerprint) {
        settle(Outcome::Duplicate, Settlement::AckAgain)
    } else {
        Decision::DeadLetter(DeadLetterReason::IdReused)
    }
}

/// The handler failed.
fn failed(retry: RetryDecision, policy: Policy, facts: &Facts) -> Decision {
    match (policy.ack, retry, facts.attempts) {
        (AckStrategy::AtMostOnce, _, _) => Decision::Settle(DISCARDED),
        (AckStrategy::OnPersist, _, _) => Decision::DeadLetter(DeadLetterReason::Persisted),
        (_, RetryDecision::Never, _) => Decision::DeadLetter(DeadLetterReason::Permanent),
        (_, _, None) => Decision::RecordFailure,
        (_, _, Some(attempts)) if policy.max_attempts.is_some_and(|max| attempts >= max) => {
            Decision::DeadLetter(DeadLetterReason::Exhausted)
        }
        (_, RetryDecision::After(delay), _) => settle(Outcome::Failed, Settlement::Nak(Delay::Fixed(delay))),
        (_, RetryDecision::Backoff, Some(attempts)) => {
            settle(Outcome::Failed, Settlement::Nak(Delay::Backoff(attempts)))
        }
    }
}

/// The failure may be the message's own or an outage. If the database works, it is retried a few times before it counts.
fn suspect(fault: Fault, retry: RetryDecision, policy: Policy, facts: &Facts) -> Decision {
    unless_outage(facts, || match (retry, facts.on_strike) {
        (RetryDecision::Backoff, None) => Decision::Strike(fault),
        (RetryDecision::Backoff, Some(OnStrike::RetryInPlace)) => unavailable(facts),
        (RetryDecision::Backoff, Some(OnStrike::Nak)) => nak_uncounted(facts),
        // What the handler says of its own message needs no connection to be true.
        _ => failed(retry, policy, facts),
    })
}

/// A probe tells whether it is an outage, which is no message's fault.
fn unless_outage(facts: &Facts, otherwise: impl FnOnce() -> Decision) -> Decision {
    match facts.probe {
        None => Decision::Probe,
        Some(Err(_)) => unavailable(facts),
        Some(Ok(())) => otherwise(),
    }
}

/// The database or the broker is unavailable for every message.
fn unavailable(facts: &Facts) -> Decision {
    settle(
        Outcome::Deferred,
        Settlement::RetryInPlace(Delay::Outage(facts.deliveries)),
    )
}

/// Others have their turn; nothing is counted.
fn nak_uncounted(facts: &Facts) -> Decision {
    settle(Outcome::Deferred, Settlement::Nak(Delay::Backoff(facts.strikes.max(1))))
}

#[cfg(test)]
mod tests;
