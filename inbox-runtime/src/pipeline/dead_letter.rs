//! Writes a message's dead letter, before which it is not acknowledged.

use super::{disposition::End, execution::Execution};
use crate::{
    error_chain::text,
    excerpt::excerpt,
    failpoint::notify_harness,
    store::{DeadLetterReason, NewDeadLetter, Store},
};

impl<S: Store> Execution<'_, S> {
    /// Writes the dead letter of a message that came to this end. Returns how the writing ended.
    pub(super) async fn dead_letter(
        &mut self,
        reason: DeadLetterReason,
        end: &End,
        failed_attempts: Option<u32>,
    ) -> End {
        let letter = self.new_dead_letter(reason, end, failed_attempts);
        match self.pipeline.records.write_dead_letter(&letter).await {
            Ok(true) => {}
            Ok(false) => return End::ReplayLeaseLost,
            Err(cause) => {
                return End::DeadLetterFailed {
                    reason,
                    error: letter.error,
                    cause: text(&cause),
                };
            }
        }
        notify_harness!(crate::failpoint::HarnessEvent::Error(&letter.error));
        self.pipeline.strikes.forget(&self.key);
        self.pipeline.instruments.dead_letter(reason);
        let logged = match end {
            End::Rejected(rejected) if reason == DeadLetterReason::Rejected => excerpt(rejected.logged.clone()),
            _ => letter.error,
        };
        tracing::error!(
            reason = reason.as_str(),
            attempts = letter.attempts,
            error = logged,
            "the message is dead-lettered"
        );
        End::DeadLettered
    }

    fn new_dead_letter(&self, reason: DeadLetterReason, end: &End, failed_attempts: Option<u32>) -> NewDeadLetter {
        let delivery = &self.job.delivery;
        let error = match reason {
            DeadLetterReason::IdReused => format!(
                "the message's id belongs to a message of another subject that this group has handled; ids must be \
                 unique within the group, not only within `{}`",
                delivery.subject
            ),
            _ => end.error(),
        };
        let attempts = match end {
            End::Exhausted { attempts, .. } => Some(*attempts),
            _ => failed_attempts.or(self.job.attempt.attempts()),
        };
        NewDeadLetter {
            key: self.key.clone(),
            replay: self.job.replay.as_ref().map(|replay| replay.token),
            subject: delivery.subject.clone(),
            headers: delivery.headers.clone(),
            payload: delivery.payload.clone(),
            message_key: delivery.key.clone(),
            published_at: delivery.published_at,
            reason,
            error,
            attempts: attempts.unwrap_or(u32::from(reason != DeadLetterReason::Rejected)),
        }
    }
}
