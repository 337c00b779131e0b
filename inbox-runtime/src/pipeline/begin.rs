//! Before a message is handled: is it a redelivery, has it an end already, and may it run now?

use std::time::Duration;

use super::{Alone, AtWork, Case, Done, Settle};
use crate::{
    error_chain::text,
    failpoint::failpoint,
    handler::AckStrategy,
    outcome::Outcome,
    store::{AttemptLimit, BeginAttempt, Session, Store},
};

/// How long a message that may have killed a process waits until what was acknowledged before it is confirmed.
const CONFIRM: Duration = Duration::from_secs(3);

impl<S: Store> Case<'_, S> {
    /// Lets the message begin, alone if it may have killed a process; or says what becomes of it in place of that.
    ///
    /// A message that kills the process must come to an end too, and no other by its fault: so an attempt that may do it is on
    /// record before it is made, and is counted only where it is the only one in the process. (Under at_most_once there is no
    /// second attempt.)
    pub(super) async fn begin(&mut self, session: &mut Option<S::Session>) -> Result<AtWork, Done> {
        if !self.job.delivery.redelivered || self.meta().ack == AckStrategy::AtMostOnce {
            return Ok(self.join(session).await);
        }
        if self.job.counted.is_none() {
            self.job.counted = self.pipeline.owed.take(&self.key);
        }
        if self.job.counted.is_some() {
            return self.alone(session).await;
        }
        failpoint!("before_attempt");
        self.job.begin();
        let limit = AttemptLimit {
            max: self.meta().max_attempts,
            claims: self.claims(),
            replay: self.job.replay.is_some(),
        };
        let mut begun = self.pipeline.records.begin_attempt(&self.key, limit).await;
        if let Ok(BeginAttempt::Handled(kept)) = begun
            && self.is_another(kept)
        {
            begun = self.pipeline.records.begin_attempt(&self.key, limit).await;
        }
        if let Ok(BeginAttempt::Begun(before)) = begun {
            self.job.noted = Some(before);
        }
        self.job.begun.send_replace(false);
        if !matches!(begun, Ok(BeginAttempt::Suspect)) {
            failpoint!("after_attempt");
        }
        match begun {
            Ok(BeginAttempt::Begun(_)) => Ok(self.join(session).await),
            Ok(BeginAttempt::Suspect) => {
                let at_work = self.alone(session).await?;
                self.count_attempt().await?;
                Ok(at_work)
            }
            Ok(BeginAttempt::Handled(fingerprint)) => Err(self.duplicate(fingerprint).await),
            Ok(BeginAttempt::DeadLettered) => Err(self.buried_before()),
            Ok(BeginAttempt::Exhausted {
                attempts,
                unfinished,
                error,
            }) => Err(self.exhausted(attempts, unfinished, error).await),
            Err(error) => Err(self.conclude(error.into()).await),
        }
    }

    /// Waits while a suspect waits or runs.
    async fn join(&self, session: &mut Option<S::Session>) -> AtWork {
        let (alone, timeout) = (&self.pipeline.alone, self.meta().timeout);
        if let Some(at_work) = alone.try_join(timeout) {
            return at_work;
        }
        release(session).await;
        alone.join(timeout).await
    }

    /// Waits until no other message is at work in the process, within bounds.
    async fn alone(&mut self, session: &mut Option<S::Session>) -> Result<AtWork, Done> {
        release(session).await;
        let alone: &Alone = &self.pipeline.alone;
        match alone.alone(self.meta().timeout).await {
            Some(at_work) => {
                // If it kills this process, nothing else is to be repeated by its fault.
                if let Ok(Err(error)) = tokio::time::timeout(CONFIRM, self.job.lease.confirm_earlier()).await {
                    tracing::debug!(error = %text(&error), "what was acknowledged before is not confirmed yet");
                }
                Ok(at_work)
            }
            None => Err(self
                .locked(
                    "the message may have killed a process and is to run alone, but other handlers took too long to finish",
                )
                .await),
        }
    }

    /// Counts the attempt that is about to be made alone.
    async fn count_attempt(&mut self) -> Result<(), Done> {
        self.job.begin();
        let counted = self.pipeline.records.count_attempt(&self.key).await;
        if let Ok(attempts) = counted {
            self.job.counted = Some(attempts);
        }
        self.job.begun.send_replace(false);
        failpoint!("after_attempt");
        match counted {
            Ok(_) => Ok(()),
            Err(error) => Err(self.conclude(error.into()).await),
        }
    }

    /// The delivery has gone to somebody else, or is about to, before the handler began.
    pub(super) async fn passed_on(&mut self, session: &mut Option<S::Session>) -> Done {
        release(session).await;
        self.pipeline.take_back_attempt(self.job).await;
        tracing::info!(
            position = self.job.delivery.position,
            "the message went to another member of the group before its handler began; it is not handled here"
        );
        Done {
            outcome: Outcome::Locked,
            settle: Settle::Aside(Duration::ZERO),
        }
    }

    /// The message is a dead letter already, and only its acknowledgement was lost.
    fn buried_before(&self) -> Done {
        tracing::info!(
            position = self.job.delivery.position,
            "the message is a dead letter already; it is acknowledged once more"
        );
        Done {
            outcome: Outcome::DeadLettered,
            settle: Settle::AckAgain,
        }
    }
}

/// Nobody waits for others with a transaction open.
async fn release<S: Session>(session: &mut Option<S>) {
    if let Some(session) = session.take() {
        session.release().await;
    }
}
