//! Finds out the facts that a message's fate depends on, and carries out what is decided.

use std::time::Duration;

use super::{
    disposition::{Decision, Delay, Disposition, End, Facts, InboxRow, Policy, Settlement, TxOutcome, decide},
    execution::Execution,
};
use crate::{
    error_chain::text,
    failpoint::notify_harness,
    outcome::Outcome,
    store::{Store, StoreError},
};

impl<S: Store> Execution<'_, S> {
    /// Carries out what is decided about the message, until only its settlement is left.
    pub(super) async fn resolve(&mut self, mut end: End) -> Disposition {
        let policy = Policy::of(self.meta());
        let mut facts = self.facts();
        loop {
            let step = match decide(&end, policy, &facts) {
                Decision::LookUp => self.look_up().await.map(|row| facts.inbox_row = Some(row)),
                Decision::Probe => {
                    let probe = self.pipeline.store.probe().await;
                    facts.probe = Some(probe.map_err(|cause| text(&cause)));
                    Ok(())
                }
                Decision::Strike(fault) => {
                    let (strikes, on_strike) = self.pipeline.strikes.add(fault, &self.key);
                    (facts.strikes, facts.on_strike) = (strikes, Some(on_strike));
                    Ok(())
                }
                Decision::RecordFailure => {
                    let recorded = self.record_failure(&end.error()).await;
                    recorded.map(|attempts| facts.attempts = Some(attempts))
                }
                Decision::DeadLetter(reason) => {
                    end = self.dead_letter(reason, &end, facts.attempts).await;
                    facts = self.facts();
                    Ok(())
                }
                Decision::Settle(disposition) => return self.conclude(&end, &facts, disposition).await,
            };
            if let Err(error) = step {
                end = End::StepFailed(text(&error));
                facts = self.facts();
            }
        }
    }

    /// What is known without asking.
    fn facts(&self) -> Facts {
        let delivery = &self.job.delivery;
        Facts {
            fingerprint: self.fingerprint(),
            redelivered: delivery.redelivered,
            deliveries: u32::try_from(delivery.delivery_count.unwrap_or(1)).unwrap_or(u32::MAX),
            strikes: self.pipeline.strikes.count(&self.key),
            inbox_row: None,
            probe: None,
            on_strike: None,
            attempts: None,
        }
    }

    /// Looks up whether the group has handled a message of this id. One without a usable id was not handled.
    async fn look_up(&mut self) -> Result<InboxRow, StoreError> {
        while let Some(id) = &self.id {
            match self.pipeline.records.handled(self.meta().group, id).await? {
                // Under an id of its own it is looked up again.
                Some(kept) if self.leave_reused_position(kept) => {}
                Some(kept) => return Ok(InboxRow::Present(kept)),
                None => break,
            }
        }
        Ok(InboxRow::Absent)
    }

    /// What a settlement entails besides: the records of attempts and strikes, health, the log.
    async fn conclude(&mut self, end: &End, facts: &Facts, disposition: Disposition) -> Disposition {
        match (end, disposition.outcome) {
            (End::Tx(TxOutcome::Committed(_)), outcome) => {
                self.pipeline.instruments.committed(self.job.delivery.published_at);
                self.pipeline.strikes.succeeded(&self.key);
                self.clear_attempts().await;
                tracing::debug!(%outcome, "handled");
            }
            (_, Outcome::Duplicate) => {
                if facts
                    .duplicate_of(end)
                    .is_some_and(|kept| !kept.same(facts.fingerprint))
                {
                    self.pipeline.instruments.payload_mismatch();
                    tracing::warn!(
                        "a message with the id of one that was handled has another payload; it is taken for a duplicate"
                    );
                }
                self.pipeline.strikes.forget(&self.key);
                self.clear_attempts().await;
                tracing::debug!("a duplicate");
            }
            (End::AlreadyDeadLettered, _) => tracing::info!(
                position = self.job.delivery.position,
                "the message is a dead letter already; it is acknowledged again"
            ),
            (_, Outcome::Failed) => return self.conclude_failed(end, facts, disposition),
            (_, Outcome::Locked) => return self.conclude_locked(end, disposition).await,
            (_, Outcome::Deferred) => self.conclude_deferred(end, facts, disposition).await,
            // Logged when the dead letter was written.
            _ => {}
        }
        disposition
    }

    fn conclude_failed(&self, end: &End, facts: &Facts, disposition: Disposition) -> Disposition {
        let error = match end {
            End::DeadLetterFailed { error, .. } => format!("{error}; {}", end.error()),
            _ => end.error(),
        };
        notify_harness!(crate::failpoint::HarnessEvent::Error(&error));
        if disposition.is_discarded() {
            tracing::error!(error, "the message was not handled; under at_most_once it is discarded");
            return disposition;
        }
        let (disposition, delay) = self.draw(disposition);
        tracing::warn!(
            attempts = facts.attempts,
            delay_ms = millis(delay),
            error,
            "the handler failed; the message is redelivered"
        );
        disposition
    }

    async fn conclude_locked(&mut self, end: &End, disposition: Disposition) -> Disposition {
        let error = end.error();
        match end {
            End::LeaseLostAtAck(_) => {
                tracing::info!(
                    error,
                    "the delivery is another consumer's by now; it is not handled here"
                );
                return disposition;
            }
            End::ReplayLeaseLost => {
                tracing::info!("another process replays the dead letter by now; what became of this replay is dropped");
                return disposition;
            }
            _ => self.pipeline.refund_attempt(self.job).await,
        }
        if matches!(end, End::LeaseLost) {
            tracing::info!(
                position = self.job.delivery.position,
                "the delivery went to another consumer before its handler began; it is not handled here"
            );
            return disposition;
        }
        notify_harness!(crate::failpoint::HarnessEvent::Error(&error));
        let (disposition, delay) = self.draw(disposition);
        tracing::info!(
            delay_ms = millis(delay),
            error,
            "the message is locked; it is redelivered"
        );
        disposition
    }

    async fn conclude_deferred(&mut self, end: &End, facts: &Facts, disposition: Disposition) {
        let mut error = end.error();
        if let Some(Err(cause)) = &facts.probe {
            error = format!("{cause}: {error}");
        }
        match (end, &facts.probe) {
            (End::AckFailed(_), _) | (_, Some(Err(_))) => self.pipeline.status.availability.mark_unavailable(&error),
            (End::Tx(TxOutcome::DeploymentFault(_)), _) => self.pipeline.status.availability.mark_lacking(&format!(
                "{error}; run the migration or grant the right that it needs (nothing is counted meanwhile)"
            )),
            (End::Tx(_), _) => tracing::warn!(
                error,
                "the message could not be handled, though the database works; it is retried, and this is not counted yet"
            ),
            _ => tracing::warn!(
                error,
                "the message could not be settled, though the database works; it is redelivered"
            ),
        }
        let aside = !disposition.is_retried_in_place();
        tracing::debug!(error, aside, "the message is deferred; nothing is counted");
        self.pipeline.refund_attempt(self.job).await;
        notify_harness!(crate::failpoint::HarnessEvent::Error(&error));
    }

    /// Draws the delay of a nak, so that it can be logged.
    fn draw(&self, disposition: Disposition) -> (Disposition, Duration) {
        let Settlement::Nak(delay) = disposition.settlement else {
            return (disposition, Duration::ZERO);
        };
        let delay = delay.draw(self.meta().backoff);
        let settlement = Settlement::Nak(Delay::Fixed(delay));
        (
            Disposition {
                settlement,
                ..disposition
            },
            delay,
        )
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
