//! Settles a worker's deliveries in the background while it goes on to the next ones.

use std::{panic::resume_unwind, sync::Arc};

use futures_util::poll;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::stop::RELEASE_WAIT;
use crate::{
    pipeline::{Disposition, Job, LeaseGuard, Pipeline},
    store::Store,
};

/// How many deliveries of a worker are settled in the background at a time, so that the number of unsettled ones is bounded. A
/// broker that confirms acknowledgements together confirms so many with one answer.
const MAX_UNSETTLED: usize = 8;

/// Settles the deliveries of one worker.
pub(super) struct BackgroundSettler<S: Store> {
    pipeline: Arc<Pipeline<S>>,
    now: CancellationToken,
    unsettled: JoinSet<()>,
}

impl<S: Store> BackgroundSettler<S> {
    /// When `now` is cancelled, what isn't settled is released.
    pub(super) fn new(pipeline: Arc<Pipeline<S>>, now: CancellationToken) -> Self {
        Self {
            pipeline,
            now,
            unsettled: JoinSet::new(),
        }
    }

    /// Settles a delivery.
    pub(super) fn settle(
        &self,
        job: Job,
        lease: LeaseGuard,
        disposition: Disposition,
    ) -> impl Future<Output = ()> + Send + use<S> {
        settle(self.pipeline.clone(), self.now.clone(), job, lease, disposition)
    }

    /// Begins to settle a delivery, and waits while too many are unsettled. Panics if settling panicked.
    pub(super) async fn begin(&mut self, job: Job, lease: LeaseGuard, disposition: Disposition) {
        let mut settle = Box::pin(self.settle(job, lease, disposition));
        // Most brokers settle at once.
        let is_settled = poll!(&mut settle).is_ready();
        while let Some(ended) = self.unsettled.try_join_next() {
            resume(ended);
        }
        if is_settled {
            return;
        }
        while self.unsettled.len() >= MAX_UNSETTLED {
            if let Some(ended) = self.unsettled.join_next().await {
                resume(ended);
            }
        }
        self.unsettled.spawn(settle);
    }

    /// Waits until everything is settled. Panics if settling panicked.
    pub(super) async fn wait_settled(&mut self) {
        while let Some(ended) = self.unsettled.join_next().await {
            resume(ended);
        }
    }
}

/// The task is cancelled only with the settler, so it has ended or panicked.
fn resume(ended: Result<(), JoinError>) {
    if let Err(panic) = ended.map_err(JoinError::into_panic) {
        resume_unwind(panic);
    }
}

async fn settle<S: Store>(
    pipeline: Arc<Pipeline<S>>,
    now: CancellationToken,
    mut job: Job,
    lease: LeaseGuard,
    disposition: Disposition,
) {
    let settled = now.run_until_cancelled(pipeline.settle(&job, disposition)).await;
    drop(lease);
    if settled.is_none() {
        if disposition.is_acknowledged() {
            pipeline.count_unconfirmed(disposition.outcome);
        }
        pipeline.release(&mut job, RELEASE_WAIT).await;
    }
}
