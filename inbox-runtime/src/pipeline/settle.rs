//! Settles deliveries at the broker, and counts what became of them.

use std::time::Duration;

use tracing::Instrument;

use super::{
    disposition::{Delay, Disposition, Settlement},
    job::Job,
    state::Pipeline,
};
use crate::{
    error_chain::text,
    failpoint::{failpoint, notify_harness},
    outcome::Outcome,
    store::Store,
};

impl<S: Store> Pipeline<S> {
    /// Settles a delivery as it was decided.
    pub(crate) async fn settle(&self, job: &Job, disposition: Disposition) -> Outcome {
        let Disposition { outcome, settlement } = disposition;
        let settled = async {
            match settlement {
                Settlement::Ack => self.acknowledge(job, false).await,
                Settlement::AckAgain => self.acknowledge(job, true).await,
                Settlement::AlreadyAcked => {}
                Settlement::Nak(delay) | Settlement::RetryInPlace(delay) => self.back_off(job, delay).await,
            }
        };
        settled.instrument(job.span.clone()).await;
        self.status.progress.record_progress();
        self.count(outcome);
        notify_harness!(crate::failpoint::HarnessEvent::settled(
            &self.meta,
            &job.delivery,
            outcome
        ));
        outcome
    }

    async fn acknowledge(&self, job: &Job, again: bool) {
        failpoint!("before_ack");
        let acked = if again {
            job.lease.ack_again().await
        } else {
            job.lease.ack().await
        };
        let failure = acked.err().map(|error| text(&error));
        self.count_ack(failure.as_deref());
        if let Some(error) = failure {
            tracing::warn!(
                handler = self.meta.name,
                error,
                "the acknowledgement failed; the message is redelivered, and is then a duplicate where it was claimed"
            );
        }
        failpoint!("after_ack");
    }

    async fn back_off(&self, job: &Job, delay: Delay) {
        let delay = delay.draw(self.meta.backoff);
        self.nak(job, delay).await;
        self.status.progress.record_backoff(delay);
    }

    /// Naks a delivery, to be redelivered after `delay`; if that fails it is redelivered when its lease expires.
    async fn nak(&self, job: &Job, delay: Duration) {
        if let Err(error) = job.lease.nak(delay).await {
            tracing::debug!(handler = self.meta.name, error = %text(&error), "the message could not be nakked");
        }
    }

    /// Releases a delivery because the program stops, which is no failure of the handler: nothing is counted. The nak and the
    /// refund may take as long as `wait` each.
    pub(crate) async fn release(&self, job: &mut Job, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.nak(job, Duration::ZERO)).await;
        let _ = tokio::time::timeout(wait, self.refund_attempt(job)).await;
    }

    /// Counts a delivery whose acknowledgement the broker has not confirmed when the inbox ends.
    pub(crate) fn count_unconfirmed(&self, outcome: Outcome) {
        self.count(outcome);
        self.counters.count_unconfirmed(1);
        tracing::warn!(
            handler = self.meta.name,
            "an acknowledgement was not confirmed by the broker before the inbox ended; its message may be redelivered, and \
             is then a duplicate where it was claimed"
        );
    }

    /// Counts what became of a delivery.
    pub(crate) fn count(&self, outcome: Outcome) {
        self.counters.count(outcome);
        self.instruments.outcome(outcome);
    }

    /// Counts an acknowledgement, which failed with that error or succeeded.
    pub(super) fn count_ack(&self, failure: Option<&str>) {
        self.counters.count_ack(failure.is_none());
        self.status.progress.record_ack(failure);
        if failure.is_some() {
            self.instruments.ack_failed();
        }
    }
}
