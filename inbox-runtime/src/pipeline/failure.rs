//! Decides about a message that was not simply handled: duplicate, attempt, back-off, dead letter, or put off.

use std::time::Duration;

use super::{Attempt, Case, Done, Job, Pipeline, Refusal, Settle, Strikes, strikes::Strikeout, trouble};
use crate::{
    error_chain::text,
    excerpt::excerpt,
    failpoint::tell_test,
    handler::AckStrategy,
    outcome::{HandlerError, Outcome, Verdict},
    store::{AttemptKey, DeadLetterReason, Fingerprint, NewDeadLetter, Store, StoreError},
};

impl<S: Store> Pipeline<S> {
    /// Takes back the attempt of this delivery that was counted in advance, if one was.
    pub(super) async fn take_back_attempt(&self, job: &mut Job) {
        let (counted, noted) = (job.counted.take(), job.noted.take());
        if counted.is_none() && noted.is_none() {
            return;
        }
        let id = self.identify(&job.delivery).ok();
        let key = self.key(job, id.as_deref());
        // Until it is done: whoever waits for it may stop waiting.
        if let Some(attempts) = counted {
            self.owed.add(key.clone(), attempts);
        }
        match self.records.refund_attempt(&key, counted.is_some()).await {
            Ok(()) => drop(self.owed.take(&key)),
            Err(error) => {
                tracing::debug!(error = %text(&error), "an attempt could not be taken back; the next one is not counted");
            }
        }
    }
}

impl<S: Store> Case<'_, S> {
    /// Decides what follows from how the transaction ended.
    pub(super) async fn conclude(&mut self, attempt: Attempt) -> Done {
        match attempt {
            Attempt::Committed(handled) => {
                self.pipeline.instruments.committed(self.job.delivery.published_at);
                self.pipeline.strikes.succeeded(&self.key);
                self.forget_attempts().await;
                let outcome = Outcome::from(handled);
                tracing::debug!(%outcome, "handled");
                self.acked(outcome)
            }
            Attempt::Duplicate(fingerprint) => self.duplicate(fingerprint).await,
            Attempt::Failed(error) | Attempt::Stale(error) => self.failed(&error).await,
            Attempt::Broken(how) => {
                tracing::error!(error = how, "the handler broke its transaction");
                self.bury(DeadLetterReason::BrokenTransaction, how, None).await
            }
            // It was acknowledged before, so it doesn't come again.
            Attempt::Locked(why) | Attempt::Again(why) | Attempt::Lost(why)
                if self.meta().ack == AckStrategy::AtMostOnce =>
            {
                self.lost(&why)
            }
            Attempt::Missing(error) | Attempt::Suspect(error) if self.meta().ack == AckStrategy::AtMostOnce => {
                self.lost(&error.report())
            }
            Attempt::Unstorable(why) => self.bury(DeadLetterReason::Rejected, why, None).await,
            Attempt::Locked(why) => self.locked(&why).await,
            Attempt::Lost(why) => self.suspected(&HandlerError::from(why), Strikes::lost).await,
            Attempt::Again(why) => self.suspected(&HandlerError::from(why), Strikes::suspected).await,
            Attempt::Suspect(error) => self.suspected(&error, Strikes::suspected).await,
            Attempt::Missing(error) => self.missing(&error).await,
        }
    }

    /// Acknowledged, now or before.
    pub(super) fn acked(&self, outcome: Outcome) -> Done {
        let settle = match self.meta().ack {
            // What is settled before its turn under at_most_once (a rejected message) has not been acknowledged yet; a
            // second acknowledgement of the others does no harm, but isn't needed.
            AckStrategy::AtMostOnce if !matches!(outcome, Outcome::DeadLettered) => Settle::Acked,
            // Nothing tells whether it was done before.
            AckStrategy::AtLeastOnce | AckStrategy::OnPersist if self.job.delivery.redelivered => Settle::AckAgain,
            _ => Settle::Ack,
        };
        Done { outcome, settle }
    }

    /// The group has handled a message of this id; whether it was this one, the fingerprint tells.
    pub(super) async fn duplicate(&mut self, kept: Fingerprint) -> Done {
        let ours = self.claim().fingerprint;
        if !kept.same_subject(ours) {
            let text = format!(
                "the message's id belongs to a message of another subject that this group has handled; ids must be \
                 unique within the group, not only within `{}`",
                self.job.delivery.subject
            );
            return self.bury(DeadLetterReason::IdReused, text, None).await;
        }
        if !kept.same(ours) {
            self.pipeline.instruments.payload_mismatch();
            tracing::warn!(
                "a message with the id of one that was handled has another payload; it is taken for a duplicate"
            );
        }
        self.forget_attempts().await;
        self.pipeline.strikes.forget(&self.key);
        tracing::debug!("handled before");
        Done {
            outcome: Outcome::Duplicate,
            settle: Settle::AckAgain,
        }
    }

    /// Forgets the attempts that led to success. They do no harm if that fails.
    async fn forget_attempts(&mut self) {
        let (counted, noted) = (self.job.counted.take(), self.job.noted.take());
        if counted.is_none() && noted.is_none() {
            return;
        }
        if let Err(error) = self.pipeline.records.clear_attempts(&self.key).await {
            tracing::warn!(error = %text(&error), "the attempts of a handled message could not be deleted");
        }
    }

    /// The handler failed.
    async fn failed(&mut self, error: &HandlerError) -> Done {
        let report = error.report();
        match (self.meta().ack, error.verdict()) {
            (AckStrategy::AtMostOnce, _) => return self.lost(&report),
            (AckStrategy::OnPersist, _) => return self.bury(DeadLetterReason::Persisted, report, None).await,
            (_, Verdict::Permanent) => return self.bury(DeadLetterReason::Permanent, report, None).await,
            _ => {}
        }
        let counted = self.job.counted.is_some();
        let attempts = match self.pipeline.records.record_failure(&self.key, counted, &report).await {
            Ok(attempts) => attempts,
            Err(error) => return self.deferred(&text(&error)).await,
        };
        // It was one: nobody takes it back any more, whatever comes.
        self.job.counted = None;
        self.job.noted = None;
        if self.meta().max_attempts.is_some_and(|max| attempts >= max) {
            return self.bury(DeadLetterReason::Exhausted, report, Some(attempts)).await;
        }
        let delay = match error.verdict() {
            Verdict::RetryAfter(delay) => delay,
            _ => self.meta().backoff.delay(attempts),
        };
        tell_test!(crate::failpoint::Told::Trouble(&report));
        tracing::warn!(
            attempts,
            delay_ms = millis(delay),
            error = report,
            "the handler failed; the message comes again"
        );
        Done {
            outcome: Outcome::Failed,
            settle: Settle::Back(delay),
        }
    }

    /// The handler failed, or could not run, on a message that was acknowledged before.
    fn lost(&self, why: &str) -> Done {
        tell_test!(crate::failpoint::Told::Trouble(why));
        tracing::error!(
            error = why,
            "the message was not handled; under at_most_once it is lost"
        );
        Done {
            outcome: Outcome::Failed,
            settle: Settle::Acked,
        }
    }

    /// An extractor refused the message, or it has no usable id.
    pub(super) async fn reject(&mut self, refusal: Refusal) -> Done {
        if let Some(done) = self.settled_by_the_inbox().await {
            return done;
        }
        let Refusal { error, logged } = refusal;
        let logged = excerpt(logged);
        self.bury_logged(DeadLetterReason::Rejected, excerpt(error), None, &logged)
            .await
    }

    /// An extractor panicked, which a redelivery may not do: another version of the program may get it.
    pub(super) async fn undecodable(&mut self, panic: HandlerError) -> Done {
        if let Some(done) = self.settled_by_the_inbox().await {
            return done;
        }
        self.conclude(Attempt::Failed(panic)).await
    }

    /// The attempts were used up before; the process may have died in each of them.
    pub(super) async fn exhausted(&mut self, attempts: u32, unfinished: bool, error: Option<String>) -> Done {
        if let Some(done) = self.settled_by_the_inbox().await {
            return done;
        }
        let died = "the process died in each of them (abort, stack overflow, out of memory)";
        let error = match error {
            None => format!("none of the attempts came to an end: {died}"),
            Some(error) if unfinished => format!(
                "the process died in the last attempt (abort, stack overflow, out of memory); the last one that came to an end \
                 failed: {error}"
            ),
            Some(error) => error,
        };
        self.bury(DeadLetterReason::Exhausted, error, Some(attempts)).await
    }

    /// What becomes of a message that can't be handled if the inbox has it, whatever else is wrong with it, or can't be
    /// asked. `None` if it hasn't.
    async fn settled_by_the_inbox(&mut self) -> Option<Done> {
        let id = self.id.clone().filter(|_| self.claims())?;
        match self.pipeline.records.handled(self.meta().group, &id).await {
            // Under its own id it is asked for once more, as often as that.
            Ok(Some(kept)) if self.is_another(kept) => Box::pin(self.settled_by_the_inbox()).await,
            Ok(Some(kept)) => Some(self.duplicate(kept).await),
            Ok(None) => None,
            Err(error) => Some(self.deferred(&text(&error)).await),
        }
    }

    /// Writes the dead letter; only then is the message acknowledged.
    async fn bury(&mut self, reason: DeadLetterReason, error: String, attempts: Option<u32>) -> Done {
        let error = excerpt(error);
        let logged = error.clone();
        self.bury_logged(reason, error, attempts, &logged).await
    }

    /// The same, with another text in the log than in the letter.
    async fn bury_logged(
        &mut self,
        reason: DeadLetterReason,
        error: String,
        attempts: Option<u32>,
        logged: &str,
    ) -> Done {
        let delivery = &self.job.delivery;
        let letter = NewDeadLetter {
            key: self.key.clone(),
            replay: self.job.replay.as_ref().map(|replay| replay.token),
            subject: delivery.subject.clone(),
            headers: delivery.headers.clone(),
            payload: delivery.payload.clone(),
            message_key: delivery.key.clone(),
            published_at: delivery.published_at,
            reason,
            error,
            attempts: attempts
                .or(self.job.counted)
                .or(self.job.noted.map(|before| before.saturating_add(1)))
                .unwrap_or(u32::from(reason != DeadLetterReason::Rejected)),
        };
        let written = match self.pipeline.records.write_dead_letter(&letter).await {
            Ok(written) => written,
            Err(error) => return self.not_buried(&letter, &error).await,
        };
        if !written {
            tracing::info!("the replay's lease has passed on; what came of it is left to who has it now");
            return Done {
                outcome: Outcome::Locked,
                settle: Settle::Acked,
            };
        }
        tell_test!(crate::failpoint::Told::Trouble(&letter.error));
        self.pipeline.strikes.forget(&self.key);
        self.pipeline.instruments.dead_letter(reason);
        tracing::error!(
            reason = reason.as_str(),
            attempts = letter.attempts,
            error = logged,
            "the message went to the dead letters"
        );
        self.acked(Outcome::DeadLettered)
    }

    /// The dead letter could not be written.
    async fn not_buried(&mut self, letter: &NewDeadLetter, error: &StoreError) -> Done {
        if self.meta().ack == AckStrategy::AtMostOnce && letter.reason != DeadLetterReason::Rejected {
            // It was acknowledged, so it doesn't come again.
            return self.lost(&format!("{}; nor could it be buried: {}", letter.error, text(error)));
        }
        self.deferred(&format!("the dead letter could not be written: {}", text(error)))
            .await
    }

    /// The claim has waited for too long: for somebody else who has the message, or, if a probe waits too, for whoever has
    /// the table, which is the trouble of every message.
    pub(super) async fn locked(&mut self, why: &str) -> Done {
        if let Err(cause) = self.pipeline.store.probe().await {
            return self.blocked(&format!("{}: {why}", text(&cause))).await;
        }
        self.pipeline.take_back_attempt(self.job).await;
        let deliveries = self.job.delivery.delivery_count.unwrap_or(1);
        let delay = self.meta().backoff.delay(u32::try_from(deliveries).unwrap_or(u32::MAX));
        tell_test!(crate::failpoint::Told::Trouble(why));
        tracing::info!(
            delay_ms = millis(delay),
            error = why,
            "the message is locked; it comes again"
        );
        Done {
            outcome: Outcome::Locked,
            settle: Settle::Back(delay),
        }
    }

    /// The connection was lost, fresh transactions didn't help, or the handler failed as in an outage: the database's trouble
    /// if a probe fails too, this message's own otherwise. That is tried again a few times before it counts.
    pub(super) async fn suspected(
        &mut self,
        error: &HandlerError,
        strike: fn(&Strikes, &AttemptKey) -> Strikeout,
    ) -> Done {
        let why = error.report();
        if let Err(cause) = self.pipeline.store.probe().await {
            return self.blocked(&format!("{}: {why}", text(&cause))).await;
        }
        let strike = match error.verdict() {
            Verdict::Retry => strike(&self.pipeline.strikes, &self.key),
            Verdict::RetryAfter(_) | Verdict::Permanent => Strikeout::Counts,
        };
        if strike == Strikeout::Counts {
            return self.failed(error).await;
        }
        tracing::warn!(
            error = why,
            "the message could not be handled, though the database works; it is tried again, and this is not counted yet"
        );
        self.put_off(&why, strike == Strikeout::Aside).await
    }

    /// The handler needs what isn't there: a fault of the deployment, for which the handler waits, unless others succeed.
    async fn missing(&mut self, error: &HandlerError) -> Done {
        let why = error.report();
        if let Err(cause) = self.pipeline.store.probe().await {
            return self.blocked(&format!("{}: {why}", text(&cause))).await;
        }
        let strike = self.pipeline.strikes.missing(&self.key);
        if strike == Strikeout::Counts {
            return self.failed(error).await;
        }
        self.pipeline.trouble.lacks(&format!(
            "{why}; run the migration or grant the right that it needs (nothing is counted meanwhile)"
        ));
        self.put_off(&why, strike == Strikeout::Aside).await
    }

    /// The database or the broker can't be used, which is not the message's fault: no further ones are pulled until it can.
    pub(super) async fn blocked(&mut self, why: &str) -> Done {
        self.pipeline.trouble.enter(why);
        self.put_off(why, false).await
    }

    /// A step of ours failed that has no transaction of a handler's in it: blocked if a probe fails too. If it works, the
    /// message is put aside, so that others go on.
    pub(super) async fn deferred(&mut self, why: &str) -> Done {
        match self.pipeline.store.probe().await {
            Err(cause) => self.blocked(&format!("{}: {why}", text(&cause))).await,
            Ok(()) => {
                tracing::warn!(
                    error = why,
                    "the message could not be settled, though the database works; it is put aside"
                );
                self.put_off(why, true).await
            }
        }
    }

    /// Nothing is counted. Put aside, the message is the broker's again for a while; otherwise whoever has it waits in place.
    async fn put_off(&mut self, why: &str, aside: bool) -> Done {
        tracing::debug!(error = why, aside, "the message is put off; nothing is counted");
        self.pipeline.take_back_attempt(self.job).await;
        tell_test!(crate::failpoint::Told::Trouble(why));
        let settle = if aside {
            let strikes = self.pipeline.strikes.count(&self.key).max(1);
            Settle::Aside(self.meta().backoff.delay(strikes))
        } else {
            let deliveries = self.job.delivery.delivery_count.unwrap_or(1);
            Settle::Back(trouble::BACKOFF.delay(u32::try_from(deliveries).unwrap_or(u32::MAX)))
        };
        Done {
            outcome: Outcome::Deferred,
            settle,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
