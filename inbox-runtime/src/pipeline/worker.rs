//! Runs a pipeline for many messages at a time: pulls, hands out, retries in place, drains.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use super::{Decoded, Job, NoNext, Pipeline, Upcoming, in_flight::Hold, replay, text, trouble};
use crate::{
    broker::DynSource,
    outcome::Outcome,
    store::{BoxFuture, Following, Session, Store, StoreError},
};

/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether another process wants a dead letter to be replayed.
const REPLAY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a worker without a message keeps its session, for the next one may be on its way: a session costs more than a
/// message.
const LINGER: Duration = Duration::from_millis(20);
/// How long giving back a message may take when the program stops.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

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
    /// Handles messages until it is told to stop. The error is a panic of a worker, after which the others are drained.
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, Result<(), JoinError>>;

    /// Handles one message and settles it.
    fn step(&self, job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome>;

    /// Takes a dead letter that is to be replayed.
    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;
}

impl<S: Store> Runner for Pipeline<S> {
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, Result<(), JoinError>> {
        Box::pin(run(self, source, stop))
    }

    fn step(&self, mut job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            self.in_flight.pace(ack_wait);
            let hold = self.in_flight.hold(job.lease.clone());
            hold.handling(self.meta.timeout);
            let mut session = None;
            let mut next = NoNext;
            let done = tokio::select! {
                done = self.process(&mut session, &mut job, None, &mut next) => done,
                () = self.in_flight.keep_alive() => unreachable!("keep_alive never returns"),
            };
            if let Some(session) = session {
                session.release().await;
            }
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

async fn run<S: Store>(pipeline: Arc<Pipeline<S>>, mut source: DynSource, stop: Stop) -> Result<(), JoinError> {
    let concurrency = pipeline.meta.concurrency.max(1) as usize;
    // One message in hand for each worker besides the one that it handles, so that there is a next one to go on with.
    let slots = Arc::new(Semaphore::new(concurrency * 2));
    let queue = Arc::new(Queue::new());

    // They end with this future: where it is dropped nobody would stop them.
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        workers.spawn(work(pipeline.clone(), queue.clone(), stop.clone()));
    }
    pipeline.in_flight.pace(source.ack_wait());
    let keep_alive = pipeline.in_flight.keep_alive();
    let work = async {
        let feed = stop.drain.run_until_cancelled(async {
            tokio::join!(pull(&pipeline, &mut source, &slots, &queue), replays(&pipeline, &queue))
        });
        let mut result = tokio::select! {
            _ = feed => Ok(()),
            // Before the queue is closed a worker ends by a panic only.
            Some(ended) = workers.join_next() => ended,
        };
        stop.drain.cancel();
        let _ = tokio::time::timeout(RELEASE_WAIT, source.close()).await;
        queue.close();
        while let Some(ended) = workers.join_next().await {
            result = result.and(ended);
        }
        result
    };
    tokio::select! {
        result = work => result,
        () = keep_alive => unreachable!("keep_alive never returns"),
    }
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
        let pulled = source.pull(free.len(), PULL_WAIT).await;
        pipeline.in_flight.pace(source.ack_wait());
        match pulled {
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
async fn replays<S: Store>(pipeline: &Pipeline<S>, queue: &Queue) {
    // A slot of its own: the pull has all the others while it waits for messages. One is taken when there is room for
    // it, so that no lease runs out before anybody holds it.
    let slots = Arc::new(Semaphore::new(1));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let requested = replay::REQUESTED.notified();
        pipeline.trouble.passed().await;
        match pipeline.take_replays(1).await {
            Ok(mut jobs) => {
                if let Some(job) = jobs.pop() {
                    let hold = pipeline.in_flight.hold(job.lease.clone());
                    queue.push(Queued { job, hold, _slot: slot });
                    continue;
                }
            }
            Err(error) => tracing::debug!(error = %text(&error), "no dead letters can be replayed now"),
        }
        let _ = tokio::time::timeout(REPLAY_INTERVAL, requested).await;
    }
}

/// One worker: handles one message after another. It keeps its session while there is a next message, and a moment longer.
async fn work<S: Store>(pipeline: Arc<Pipeline<S>>, queue: Arc<Queue>, stop: Stop) {
    let mut worker = Worker {
        pipeline: &pipeline,
        queue: &queue,
        stop: &stop,
        session: None,
        next: NextInHand {
            pipeline: &pipeline,
            queue: &queue,
            message: None,
        },
    };
    while let Some((queued, decoded)) = worker.pop().await {
        worker.handle(queued, decoded).await;
    }
}

struct Worker<'a, S: Store> {
    pipeline: &'a Pipeline<S>,
    queue: &'a Queue,
    stop: &'a Stop,
    session: Option<S::Session>,
    next: NextInHand<'a, S>,
}

/// The message that was taken in hand while the one before it was being committed.
struct NextInHand<'a, S: Store> {
    pipeline: &'a Pipeline<S>,
    queue: &'a Queue,
    message: Option<(Queued, Option<Decoded<S>>)>,
}

impl<S: Store> Upcoming for NextInHand<'_, S> {
    fn take(&mut self) -> Following<'_> {
        if self.message.is_none() {
            self.message = self.queue.try_pop().map(|queued| {
                let decoded = self.pipeline.decode_ahead(&queued.job);
                (queued, decoded)
            });
        }
        match &self.message {
            None => Following::Nothing,
            Some((_, None)) => Following::Message,
            Some((_, Some(decoded))) => Following::Claim(decoded.claim(self.pipeline.meta.group)),
        }
    }
}

impl<S: Store> Worker<'_, S> {
    async fn pop(&mut self) -> Option<(Queued, Option<Decoded<S>>)> {
        if let Some(message) = self.next.message.take() {
            return Some(message);
        }
        if let Some(queued) = self.queue.try_pop() {
            return Some((queued, None));
        }
        if self.session.is_some()
            && let Ok(popped) = tokio::time::timeout(LINGER, self.queue.pop()).await
        {
            if popped.is_none() {
                self.release().await;
            }
            return Some((popped?, None));
        }
        self.release().await;
        Some((self.queue.pop().await?, None))
    }

    async fn release(&mut self) {
        if let Some(session) = self.session.take() {
            session.release().await;
        }
    }

    async fn handle(&mut self, mut queued: Queued, decoded: Option<Decoded<S>>) {
        let now = &self.stop.now;
        let settled = now
            .run_until_cancelled(self.handle_until_settled(&mut queued, decoded))
            .await
            .unwrap_or(false);
        drop(queued.hold);
        if !settled {
            self.pipeline.release(&mut queued.job, RELEASE_WAIT).await;
        }
    }

    /// Handles a message, again and again while the database or the broker fails. Returns whether it is settled.
    async fn handle_until_settled(&mut self, queued: &mut Queued, mut decoded: Option<Decoded<S>>) -> bool {
        let pipeline = self.pipeline;
        let mut failures = 0;
        loop {
            if self.stop.drain.is_cancelled() {
                return false;
            }
            queued.hold.handling(pipeline.meta.timeout);
            let stopped = queued.job.stopped_before_it_began(self.stop.drain.clone());
            let done = tokio::select! {
                biased;
                done = pipeline.process(&mut self.session, &mut queued.job, decoded.take(), &mut self.next) => done,
                // It waits for its turn at the database, behind handlers that are to finish.
                () = stopped => return false,
            };
            if done.outcome != Outcome::Deferred {
                pipeline.trouble.leave();
                pipeline.settle(&queued.job, done).await;
                return true;
            }
            pipeline.tally.count(Outcome::Deferred);
            failures += 1;
            self.stop
                .drain
                .run_until_cancelled(tokio::time::sleep(pause(failures)))
                .await;
        }
    }
}

/// The wait before the next try: at least half of the bound, so that nothing is hammered.
fn pause(failures: u32) -> Duration {
    let half = trouble::BACKOFF.bound(failures) / 2;
    half + half.mul_f64(fastrand::f64())
}
