//! Runs one handler: its workers, and what feeds them.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::task::JoinSet;

use super::{
    fetch::{fetch, fetch_replays},
    queue::queue,
    slots::Slots,
    stop::{RELEASE_WAIT, Stop},
    worker::work,
};
use crate::{
    broker::DynSource,
    error::Error,
    outcome::Outcome,
    pipeline::{Job, NoLookahead, Pipeline, Running},
    store::{Records, Session, Store, StoreError},
};

/// A pipeline whose store is erased.
pub(crate) trait Runner: Send + Sync {
    /// Handles messages until it is stopped. The error is a panic of a worker or the end of the broker's client, after which
    /// the others are drained.
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, Result<(), Error>>;

    /// Handles one message and settles it.
    fn step(&self, job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome>;

    /// The messages that are being handled.
    fn running(&self) -> Running;

    /// Dead letters of its group are due for a replay: while it runs it takes them as it has slots.
    fn wake_for_replays(&self);

    /// Whether its dead letters are there.
    fn keeps_records_in(&self, records: &Arc<dyn Records>) -> bool;

    /// Takes a dead letter that is to be replayed.
    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;
}

impl<S: Store> Runner for Pipeline<S> {
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(run(self, source, stop))
    }

    fn step(&self, mut job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            self.status.leases.set_ack_wait(ack_wait);
            let lease = self.status.leases.keep(job.lease.clone());
            lease.handling(self.meta.timeout);
            let (mut session, mut lookahead) = (None, NoLookahead);
            let disposition = tokio::select! {
                disposition = self.execute(&mut session, &mut job, None, &mut lookahead) => disposition,
                () = self.status.leases.keep_alive() => unreachable!("keep_alive never returns"),
            };
            if let Some(session) = session {
                session.release().await;
            }
            if disposition.outcome != Outcome::Deferred {
                self.status.availability.mark_available();
            }
            drop(lease);
            self.settle(&job, disposition).await
        })
    }

    fn running(&self) -> Running {
        self.running.clone()
    }

    fn wake_for_replays(&self) {
        // Remembered until it waits for it.
        self.replays_due.notify_one();
    }

    fn keeps_records_in(&self, records: &Arc<dyn Records>) -> bool {
        Arc::ptr_eq(&self.records, records)
    }

    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        Box::pin(async move { Ok(self.take_replays(1).await?.pop()) })
    }
}

async fn run<S: Store>(pipeline: Arc<Pipeline<S>>, mut source: DynSource, stop: Stop) -> Result<(), Error> {
    let concurrency = pipeline.meta.concurrency.max(1) as usize;
    let mut slots = Slots::new(pipeline.meta.concurrency);
    let (sender, queue) = queue();

    // They end with this future: if it is dropped nobody else stops them.
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        workers.spawn(work(pipeline.clone(), queue.clone(), stop.clone()));
    }
    pipeline.status.leases.set_ack_wait(source.ack_wait());
    let keep_alive = pipeline.status.leases.keep_alive();
    let sample = pipeline.instruments.sample(&pipeline.status.open, source.status());
    let work = async {
        let mut result = tokio::select! {
            biased;
            () = stop.drain.cancelled() => Ok(()),
            error = fetch(&pipeline, &mut source, &mut slots, &sender) => Err(error.into()),
            () = fetch_replays(&pipeline, &sender) => unreachable!("fetch_replays never returns"),
            // Before the queue is closed a worker ends by a panic only.
            Some(ended) = workers.join_next() => ended.map_err(Error::from),
        };
        stop.drain.cancel();
        let _ = tokio::time::timeout(RELEASE_WAIT, source.close()).await;
        sender.close();
        while let Some(ended) = workers.join_next().await {
            result = result.and(ended.map_err(Error::from));
        }
        result
    };
    tokio::select! {
        result = work => result,
        () = keep_alive => unreachable!("keep_alive never returns"),
        () = sample => unreachable!("sample never returns"),
    }
}
