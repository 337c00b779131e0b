//! Settles a worker's delivery in the background while it goes on to the next one.

use std::{panic::resume_unwind, sync::Arc};

use futures_util::poll;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::stop::RELEASE_WAIT;
use crate::{
    pipeline::{Disposition, Job, LeaseGuard, Pipeline},
    store::Store,
};

/// Settles the deliveries of one worker: one in the background at most, so that the number of unsettled ones is bounded.
pub(super) struct BackgroundSettler<S: Store> {
    pipeline: Arc<Pipeline<S>>,
    now: CancellationToken,
    last: JoinSet<()>,
}

impl<S: Store> BackgroundSettler<S> {
    /// When `now` is cancelled, what isn't settled is released.
    pub(super) fn new(pipeline: Arc<Pipeline<S>>, now: CancellationToken) -> Self {
        Self {
            pipeline,
            now,
            last: JoinSet::new(),
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

    /// Begins to settle a delivery, and waits until the one before it is settled.
    pub(super) async fn begin(&mut self, job: Job, lease: LeaseGuard, disposition: Disposition) {
        let mut settle = Box::pin(self.settle(job, lease, disposition));
        // Most brokers settle at once.
        let is_settled = poll!(&mut settle).is_ready();
        self.wait_settled().await;
        if !is_settled {
            self.last.spawn(settle);
        }
    }

    /// Waits until everything is settled. Panics if settling panicked.
    pub(super) async fn wait_settled(&mut self) {
        while let Some(ended) = self.last.join_next().await {
            // It is cancelled only with this.
            if let Err(panic) = ended.map_err(JoinError::into_panic) {
                resume_unwind(panic);
            }
        }
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
