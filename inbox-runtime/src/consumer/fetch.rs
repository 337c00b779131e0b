//! Feeds the queue: messages from the broker, and dead letters that are to be replayed.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{
    queue::{QueueSender, Queued},
    slots::Slots,
};
use crate::{
    broker::{BrokerError, DynSource},
    error_chain::text,
    pipeline::{Job, OUTAGE_BACKOFF, Pipeline},
    store::Store,
};

/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(5);

/// How often a handler that waits for room in its outbox shows that it is alive.
const OUTBOX_WAIT: Duration = Duration::from_secs(1);

/// Pulls as many messages as there are free slots, until the broker's client ends.
pub(super) async fn fetch<S: Store>(
    pipeline: &Pipeline<S>,
    source: &mut DynSource,
    slots: &mut Slots,
    queue: &QueueSender,
) -> BrokerError {
    let status = &pipeline.status;
    let mut failures = 0;
    loop {
        status.availability.wait_available().await;
        wait_for_outbox(pipeline).await;
        let free = slots.take_free().await;
        let pulled = source.pull(free.len(), PULL_WAIT).await;
        status.leases.set_ack_wait(source.ack_wait());
        match pulled {
            Ok(deliveries) => {
                if status.availability.set_broker(None) {
                    tracing::info!(handler = pipeline.meta.name, "the broker answers again");
                }
                status.progress.record_progress();
                failures = 0;
                let pulled = deliveries.len();
                for ((delivery, lease), slot) in deliveries.into_iter().zip(free) {
                    let job = Job::new(delivery, lease);
                    queue.push(Queued::new(&status.leases, job, Some(slot)));
                }
                slots.pulled(pulled);
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

/// Waits while the outbox that the handler publishes to is full, which is among the warnings: a broker that is down must not fill the
/// disk of the database.
async fn wait_for_outbox<S: Store>(pipeline: &Pipeline<S>) {
    let Some(outbox) = &pipeline.outbox else { return };
    while outbox.is_full() {
        pipeline.status.progress.record_progress();
        outbox.wait_for_room(OUTBOX_WAIT).await;
    }
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
