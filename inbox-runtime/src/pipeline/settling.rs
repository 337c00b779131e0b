//! Settling a delivery while its worker goes on to the next one.

use std::{panic::resume_unwind, sync::Arc};

use futures_util::poll;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Done, Job, Pipeline, in_flight::Hold, worker::RELEASE_WAIT};
use crate::store::Store;

/// What a worker still settles: one delivery at most, so that what is out has a bound.
pub(super) struct Settling<S: Store> {
    pipeline: Arc<Pipeline<S>>,
    now: CancellationToken,
    last: JoinSet<()>,
}

impl<S: Store> Settling<S> {
    /// `now` ends it: what isn't settled by then is given back.
    pub(super) fn new(pipeline: Arc<Pipeline<S>>, now: CancellationToken) -> Self {
        Self {
            pipeline,
            now,
            last: JoinSet::new(),
        }
    }

    /// Settles a delivery.
    pub(super) fn settle(&self, job: Job, hold: Hold, done: Done) -> impl Future<Output = ()> + Send + use<S> {
        settle(self.pipeline.clone(), self.now.clone(), job, hold, done)
    }

    /// Begins to settle a delivery, and waits for the one before it.
    pub(super) async fn begin(&mut self, job: Job, hold: Hold, done: Done) {
        let mut settle = Box::pin(self.settle(job, hold, done));
        // Most brokers have it done in no time.
        let over = poll!(&mut settle).is_ready();
        self.settled().await;
        if !over {
            self.last.spawn(settle);
        }
    }

    /// Waits until everything is settled.
    pub(super) async fn settled(&mut self) {
        while let Some(ended) = self.last.join_next().await {
            // It is cancelled only with this.
            if let Err(panic) = ended.map_err(tokio::task::JoinError::into_panic) {
                resume_unwind(panic);
            }
        }
    }
}

async fn settle<S: Store>(pipeline: Arc<Pipeline<S>>, now: CancellationToken, mut job: Job, hold: Hold, done: Done) {
    let (outcome, acknowledged) = (done.outcome, done.is_acknowledged());
    let settled = now.run_until_cancelled(pipeline.settle(&job, done)).await;
    drop(hold);
    if settled.is_none() {
        if acknowledged {
            pipeline.not_confirmed(outcome);
        }
        pipeline.release(&mut job, RELEASE_WAIT).await;
    }
}
