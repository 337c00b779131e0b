//! Feeds the queue: messages from the broker, and dead letters that are to be replayed.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::queue::{QueueSender, Queued};
use crate::{
    broker::{BrokerError, DynSource},
    error_chain::text,
    pipeline::{Job, OUTAGE_BACKOFF, Pipeline},
    store::Store,
};

/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(5);

/// Pulls as many messages as there are free slots, at least half as many as there are workers, until the broker's client ends.
pub(super) async fn fetch<S: Store>(
    pipeline: &Pipeline<S>,
    source: &mut DynSource,
    slots: &Arc<Semaphore>,
    queue: &QueueSender,
) -> BrokerError {
    let status = &pipeline.status;
    // Half as many as there are workers: with fewer slots free every worker has a message, and others wait.
    let batch = (pipeline.meta.concurrency / 2).max(1);
    let mut failures = 0;
    loop {
        status.availability.wait_available().await;
        let free = free_slots(slots, batch).await;
        let pulled = source.pull(free.len(), PULL_WAIT).await;
        status.leases.set_ack_wait(source.ack_wait());
        match pulled {
            Ok(deliveries) => {
                if status.availability.set_broker(None) {
                    tracing::info!(handler = pipeline.meta.name, "the broker answers again");
                }
                status.progress.record_progress();
                failures = 0;
                for ((delivery, lease), slot) in deliveries.into_iter().zip(free) {
                    let job = Job::new(delivery, lease);
                    queue.push(Queued::new(&status.leases, job, Some(slot)));
                }
            }
            Err(error) => {
                drop(free);
                failures += 1;
                mark_broker_unavailable(pipeline, &error);
                if matches!(error, BrokerError::Ended(_)) {
                    return error;
                }
                tokio::time::sleep(pause(failures)).await;
            }
        }
    }
}

/// Waits until so many slots are free and takes all that are. Under load a pull of one or two messages costs as much as one of
/// many.
async fn free_slots(slots: &Arc<Semaphore>, batch: u32) -> Vec<OwnedSemaphorePermit> {
    drop(slots.acquire_many(batch).await);
    std::iter::from_fn(|| slots.clone().try_acquire_owned().ok()).collect()
}

/// Shows in health why nothing can be pulled. It is logged once, not at each try; the end of the client is the inbox's error.
fn mark_broker_unavailable<S: Store>(pipeline: &Pipeline<S>, error: &BrokerError) {
    let why = text(error);
    let is_new = pipeline.status.availability.set_broker(Some(why.clone()));
    if is_new && !matches!(error, BrokerError::Ended(_)) {
        tracing::error!(
            handler = pipeline.meta.name,
            error = why,
            "no messages can be pulled; trying again"
        );
    }
}

/// Takes dead letters that are to be replayed, whenever it is told that some are due. Never returns.
pub(super) async fn fetch_replays<S: Store>(pipeline: &Pipeline<S>, queue: &QueueSender) {
    // A slot of its own: the pull holds all others while it waits for messages. A dead letter is taken only when the slot is
    // free, so that no lease expires before it is kept alive.
    let slots = Arc::new(Semaphore::new(1));
    loop {
        let slot = slots.clone().acquire_owned().await.ok();
        pipeline.status.availability.wait_available().await;
        match pipeline.take_replays(1).await {
            Ok(mut jobs) => {
                if let Some(job) = jobs.pop() {
                    queue.push(Queued::new(&pipeline.status.leases, job, slot));
                    continue;
                }
            }
            Err(error) => tracing::debug!(error = %text(&error), "no dead letters can be replayed now"),
        }
        pipeline.replays_due.notified().await;
    }
}

/// The wait after so many failures of the database or the broker: at least half of the bound, so that neither is flooded.
pub(super) fn pause(failures: u32) -> Duration {
    let half = OUTAGE_BACKOFF.bound(failures) / 2;
    half + half.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_pull_takes_all_free_slots_and_waits_for_a_batch_of_them() {
        let slots = Arc::new(Semaphore::new(8));
        let mut taken = free_slots(&slots, 3).await;
        assert_eq!(taken.len(), 8, "nothing is in flight");
        taken.truncate(6);
        let mut next = std::pin::pin!(free_slots(&slots, 3));
        assert!(poll!(&mut next).is_pending(), "two are no batch");
        taken.truncate(4);
        assert_eq!(next.await.len(), 4, "the whole batch and what is free besides");
    }
}
