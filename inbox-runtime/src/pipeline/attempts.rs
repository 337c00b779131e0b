//! Before a message is handled: whether it is a redelivery that has come to its end, whether it may begin now, and what is
//! put on record of the attempt; afterwards, what is taken off the record.

use std::time::Duration;

use super::{
    disposition::{End, TxOutcome},
    execution::{Execution, release},
    job::{AttemptRecord, Job},
    solo_gate::GatePass,
    state::Pipeline,
};
use crate::{
    error_chain::text,
    failpoint::failpoint,
    store::{AttemptLimit, BeginAttempt, Store, StoreError},
};

/// How long a message that may have killed a process waits until earlier acknowledgements are confirmed.
const CONFIRM: Duration = Duration::from_secs(3);

impl<S: Store> Execution<'_, S> {
    /// Admits the message: alone if it may have killed a process. The error is its end in place of that.
    ///
    /// A message that kills the process must come to an end too, and no other through it: so an attempt that may do it is on
    /// record before it is made, and is counted only where it is the only one in the process. (Under at_most_once there is no
    /// second attempt.)
    pub(super) async fn admit(&mut self, session: &mut Option<S::Session>) -> Result<GatePass, End> {
        if !self.job.delivery.redelivered || self.is_at_most_once() {
            return Ok(self.enter(session).await);
        }
        if let Some(attempts) = self.pipeline.refunds.take(&self.key) {
            self.job.attempt = AttemptRecord::Counted { attempts };
        }
        if self.job.attempt.is_counted() {
            return self.enter_alone(session).await;
        }
        match self.begin_attempt().await {
            Ok(BeginAttempt::Begun(_)) => Ok(self.enter(session).await),
            Ok(BeginAttempt::Suspect) => {
                let pass = self.enter_alone(session).await?;
                self.count_attempt().await?;
                Ok(pass)
            }
            Ok(BeginAttempt::Handled(fingerprint)) => Err(End::Tx(TxOutcome::Duplicate(fingerprint))),
            Ok(BeginAttempt::DeadLettered) => Err(End::AlreadyDeadLettered),
            Ok(BeginAttempt::Exhausted {
                attempts,
                unfinished,
                error,
            }) => Err(End::Exhausted {
                attempts,
                error: exhausted(unfinished, error),
            }),
            Err(error) => Err(End::Tx(error.into())),
        }
    }

    /// Asks what is known of a message that was delivered before; puts on record that an attempt begins, unless it is to be
    /// made alone.
    async fn begin_attempt(&mut self) -> Result<BeginAttempt, StoreError> {
        failpoint!("before_attempt");
        self.job.begin();
        let limit = AttemptLimit {
            max: self.meta().max_attempts,
            claims: self.claims(),
            replay: self.job.is_replay(),
        };
        let mut begun = self.pipeline.records.begin_attempt(&self.key, limit).await;
        if let Ok(BeginAttempt::Handled(kept)) = begun
            && self.leave_reused_position(kept)
        {
            begun = self.pipeline.records.begin_attempt(&self.key, limit).await;
        }
        if let Ok(BeginAttempt::Begun(before)) = begun {
            self.job.attempt = AttemptRecord::Begun { before };
        }
        self.job.pause();
        if !matches!(begun, Ok(BeginAttempt::Suspect)) {
            failpoint!("after_attempt");
        }
        begun
    }

    /// Enters the gate, once no suspect waits or runs.
    async fn enter(&self, session: &mut Option<S::Session>) -> GatePass {
        let (gate, timeout) = (&self.pipeline.gate, self.meta().timeout);
        if let Some(pass) = gate.try_enter(timeout) {
            return pass;
        }
        release(session).await;
        gate.enter(timeout).await
    }

    /// Enters the gate alone, unless other messages take too long to finish.
    async fn enter_alone(&self, session: &mut Option<S::Session>) -> Result<GatePass, End> {
        release(session).await;
        let Some(pass) = self.pipeline.gate.enter_alone(self.meta().timeout).await else {
            return Err(End::Busy(
                "the message may have killed a process and is to run alone, but other handlers took too long to finish"
                    .to_owned(),
            ));
        };
        // If it kills this process, no other message is to be repeated because of it.
        if let Ok(Err(error)) = tokio::time::timeout(CONFIRM, self.job.lease.confirm_earlier()).await {
            tracing::debug!(error = %text(&error), "earlier acknowledgements are not confirmed yet");
        }
        Ok(pass)
    }

    /// Counts the attempt that is about to be made alone.
    async fn count_attempt(&mut self) -> Result<(), End> {
        self.job.begin();
        let counted = self.pipeline.records.count_attempt(&self.key).await;
        if let Ok(attempts) = counted {
            self.job.attempt = AttemptRecord::Counted { attempts };
        }
        self.job.pause();
        failpoint!("after_attempt");
        counted.map(drop).map_err(|error| End::Tx(error.into()))
    }

    /// Puts on record that the attempt failed. Returns the attempts so far.
    pub(super) async fn record_failure(&mut self, error: &str) -> Result<u32, StoreError> {
        let counted = self.job.attempt.is_counted();
        let attempts = self.pipeline.records.record_failure(&self.key, counted, error).await?;
        // It is not refunded any more.
        self.job.attempt = AttemptRecord::Nothing;
        Ok(attempts)
    }

    /// Deletes the attempts of a message that is done. Those that stay do no harm.
    pub(super) async fn clear_attempts(&mut self) {
        if std::mem::take(&mut self.job.attempt) == AttemptRecord::Nothing {
            return;
        }
        if let Err(error) = self.pipeline.records.clear_attempts(&self.key).await {
            tracing::warn!(error = %text(&error), "the attempts of a handled message could not be deleted");
        }
    }
}

impl<S: Store> Pipeline<S> {
    /// Takes the attempt off the record, if it is on record: it was not made.
    pub(super) async fn refund_attempt(&self, job: &mut Job) {
        let attempt = std::mem::take(&mut job.attempt);
        if attempt == AttemptRecord::Nothing {
            return;
        }
        let id = self.identify(&job.delivery).ok();
        let key = self.attempt_key(job, id.as_deref());
        // Until it is done: whoever awaits this may give up.
        if let AttemptRecord::Counted { attempts } = attempt {
            self.refunds.add(key.clone(), attempts);
        }
        match self.records.refund_attempt(&key, attempt.is_counted()).await {
            Ok(()) => drop(self.refunds.take(&key)),
            Err(error) => {
                tracing::debug!(error = %text(&error), "an attempt could not be refunded; the next one is not counted");
            }
        }
    }
}

/// The error of a message whose attempts were used up before. `unfinished` says that the last one never ended.
fn exhausted(unfinished: bool, error: Option<String>) -> String {
    match error {
        None => "none of the attempts came to an end: the process died in each of them (abort, stack overflow, out of memory)"
            .to_owned(),
        Some(error) if unfinished => format!(
            "the process died in the last attempt (abort, stack overflow, out of memory); the last one that came to an end \
             failed: {error}"
        ),
        Some(error) => error,
    }
}
