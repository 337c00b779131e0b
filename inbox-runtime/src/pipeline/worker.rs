//! Runs a pipeline for many messages at a time: pulls, hands out, retries in place, drains.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Job, Pipeline, in_flight::Hold, replay, text};
use crate::{
    broker::DynSource,
    outcome::Outcome,
    registry::Backoff,
    store::{BoxFuture, Store, StoreError},
};

/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether another process wants a dead letter to be replayed.
const REPLAY_INTERVAL: Duration = Duration::from_secs(5);
/// How long giving back a message may take when the program stops.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// The wait between two tries while the broker or the database can't be used. Half of it is random.
const TROUBLE: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// How a running pipeline is told to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// What runs is finished, everything else is given back.
    pub(crate) drain: CancellationToken,
    /// What runs is rolled back and given back.
    pub(crate) now: CancellationToken,
}

/// A pipeline whose store is not of interest.
pub(crate) trait Runner: Send + Sync {
    /// Handles messages until it is told to stop.
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, ()>;

    /// Handles one message and settles it.
    fn step(&self, job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome>;

    /// Takes a dead letter that is to be replayed.
    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;
}

impl<S: Store> Runner for Pipeline<S> {
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, ()> {
        Box::pin(run(self, source, stop))
    }

    fn step(&self, mut job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let hold = self.in_flight.hold(job.lease.clone());
            hold.handling(self.meta.timeout);
            let mut session = None;
            let done = tokio::select! {
                done = self.process(&mut session, &mut job) => done,
                () = self.in_flight.keep_alive(ack_wait) => unreachable!("keep_alive never returns"),
            };
            if done.outcome != Outcome::Deferred {
                self.trouble.leave();
            }
            drop(hold);
            self.settle(&job, done).await
        })
    }

    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        Box::pin(async move { Ok(self.take_replays(1).await?.pop()) })
    }
}

/// A message that waits for a worker, with its lease and its slot.
struct Queued {
    job: Job,
    hold: Hold,
    _slot: OwnedSemaphorePermit,
}

/// The messages that wait for a worker: as many permits as there are messages.
struct Queue {
    jobs: Mutex<VecDeque<Queued>>,
    waiting: Semaphore,
}

impl Queue {
    fn new() -> Self {
        Self {
            jobs: Mutex::default(),
            waiting: Semaphore::new(0),
        }
    }

    fn push(&self, queued: Queued) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(queued);
        self.waiting.add_permits(1);
    }

    fn try_pop(&self) -> Option<Queued> {
        match self.waiting.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits) => return None,
            Err(TryAcquireError::Closed) => {}
        }
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// `None` when the queue is closed and empty.
    async fn pop(&self) -> Option<Queued> {
        if let Ok(permit) = self.waiting.acquire().await {
            permit.forget();
        }
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn close(&self) {
        self.waiting.close();
    }
}

async fn run<S: Store>(pipeline: Arc<Pipeline<S>>, mut source: DynSource, stop: Stop) {
    let concurrency = pipeline.meta.concurrency.max(1) as usize;
    // One message in hand for each worker besides the one that it handles, so that there is a next one to go on with.
    let slots = Arc::new(Semaphore::new(concurrency * 2));
    let queue = Arc::new(Queue::new());

    let workers = TaskTracker::new();
    for _ in 0..concurrency {
        workers.spawn(work(pipeline.clone(), queue.clone(), stop.clone()));
    }
    workers.close();
    let keep_alive = {
        let (pipeline, ack_wait) = (pipeline.clone(), source.ack_wait());
        tokio::spawn(async move { pipeline.in_flight.keep_alive(ack_wait).await })
    };

    stop.drain
        .run_until_cancelled(async {
            tokio::join!(
                pull(&pipeline, &mut source, &slots, &queue),
                replays(&pipeline, &slots, &queue)
            )
        })
        .await;
    let _ = tokio::time::timeout(RELEASE_WAIT, source.close()).await;
    queue.close();
    workers.wait().await;
    keep_alive.abort();
}

/// Pulls as many messages as there are slots, for ever.
async fn pull<S: Store>(pipeline: &Pipeline<S>, source: &mut DynSource, slots: &Arc<Semaphore>, queue: &Queue) {
    let mut failures = 0;
    loop {
        pipeline.trouble.passed().await;
        let mut free = Vec::from_iter(slots.clone().acquire_owned().await);
        while let Ok(slot) = slots.clone().try_acquire_owned() {
            free.push(slot);
        }
        match source.pull(free.len(), PULL_WAIT).await {
            Ok(deliveries) => {
                if pipeline.trouble.broker(None) {
                    tracing::info!(handler = pipeline.meta.name, "the broker answers again");
                }
                failures = 0;
                for ((delivery, lease), slot) in deliveries.into_iter().zip(free) {
                    let hold = pipeline.in_flight.hold(lease.clone());
                    queue.push(Queued {
                        job: Job::new(delivery, lease),
                        hold,
                        _slot: slot,
                    });
                }
            }
            Err(error) => {
                drop(free);
                failures += 1;
                let why = text(&error);
                // Once, not at each try.
                if pipeline.trouble.broker(Some(why.clone())) {
                    tracing::error!(
                        handler = pipeline.meta.name,
                        error = why,
                        "no messages can be pulled; trying again"
                    );
                }
                tokio::time::sleep(pause(failures)).await;
            }
        }
    }
}

/// Looks for dead letters that are to be replayed, for ever.
async fn replays<S: Store>(pipeline: &Pipeline<S>, slots: &Arc<Semaphore>, queue: &Queue) {
    loop {
        let requested = replay::REQUESTED.notified();
        pipeline.trouble.passed().await;
        match pipeline.take_replays(1).await {
            Ok(jobs) if !jobs.is_empty() => {
                for job in jobs {
                    let Ok(slot) = slots.clone().acquire_owned().await else {
                        return;
                    };
                    let hold = pipeline.in_flight.hold(job.lease.clone());
                    queue.push(Queued { job, hold, _slot: slot });
                }
                continue;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(error = %text(&error), "no dead letters can be replayed now"),
        }
        let _ = tokio::time::timeout(REPLAY_INTERVAL, requested).await;
    }
}

/// One worker: handles one message after another. It keeps its session while there is a next message, and no longer.
async fn work<S: Store>(pipeline: Arc<Pipeline<S>>, queue: Arc<Queue>, stop: Stop) {
    let mut session = None;
    loop {
        let queued = match queue.try_pop() {
            Some(queued) => queued,
            None => {
                session = None;
                match queue.pop().await {
                    Some(queued) => queued,
                    None => return,
                }
            }
        };
        handle(&pipeline, &mut session, queued, &stop).await;
    }
}

async fn handle<S: Store>(pipeline: &Pipeline<S>, session: &mut Option<S::Session>, mut queued: Queued, stop: &Stop) {
    let settled = stop
        .now
        .run_until_cancelled(handle_until_settled(pipeline, session, &mut queued, stop))
        .await
        .unwrap_or(false);
    drop(queued.hold);
    if !settled {
        let release = async {
            // That the program stops is no failure of the handler.
            pipeline.take_back_attempt(&mut queued.job).await;
            pipeline.give_back(&queued.job, Duration::ZERO).await;
        };
        let _ = tokio::time::timeout(RELEASE_WAIT, release).await;
    }
}

/// Handles a message, again and again while the database or the broker fails. Returns whether it is settled.
async fn handle_until_settled<S: Store>(
    pipeline: &Pipeline<S>,
    session: &mut Option<S::Session>,
    queued: &mut Queued,
    stop: &Stop,
) -> bool {
    let mut failures = 0;
    loop {
        if stop.drain.is_cancelled() {
            return false;
        }
        queued.hold.handling(pipeline.meta.timeout);
        let done = pipeline.process(session, &mut queued.job).await;
        if done.outcome != Outcome::Deferred {
            pipeline.trouble.leave();
            pipeline.settle(&queued.job, done).await;
            return true;
        }
        pipeline.tally.count(Outcome::Deferred);
        failures += 1;
        stop.drain
            .run_until_cancelled(tokio::time::sleep(pause(failures)))
            .await;
    }
}

/// The wait before the next try: at least half of the bound, so that nothing is hammered.
fn pause(failures: u32) -> Duration {
    let half = TROUBLE.bound(failures) / 2;
    half + half.mul_f64(fastrand::f64())
}
