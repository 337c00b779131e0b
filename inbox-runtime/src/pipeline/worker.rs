//! Runs a pipeline for many messages at a time: pulls, hands out, retries in place, drains.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Decoded, Done, Job, NoNext, Pipeline, Running,
    next::NextInHand,
    queue::{Queue, Queued},
    replay,
    settling::Settling,
    trouble,
};
use crate::{
    broker::{BrokerError, DynSource},
    error::Error,
    error_chain::text,
    handler::AckStrategy,
    outcome::Outcome,
    store::{Session, Store, StoreError},
};
use futures_util::future::BoxFuture;

/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether another process wants a dead letter to be replayed.
const REPLAY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a worker without a message keeps its session, for the next one may be on its way: a session costs more than a
/// message.
const LINGER: Duration = Duration::from_millis(20);
/// How long giving back a message may take when the program stops.
pub(super) const RELEASE_WAIT: Duration = Duration::from_secs(2);

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
    /// Handles messages until it is told to stop. The error is a panic of a worker or the end of the broker's client, after
    /// which the others are drained.
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, Result<(), Error>>;

    /// Handles one message and settles it.
    fn step(&self, job: Job, ack_wait: Duration) -> BoxFuture<'_, Outcome>;

    /// The messages that are being handled.
    fn running(&self) -> Running;

    /// Takes a dead letter that is to be replayed.
    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;
}

impl<S: Store> Runner for Pipeline<S> {
    fn run(self: Arc<Self>, source: DynSource, stop: Stop) -> BoxFuture<'static, Result<(), Error>> {
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

    fn running(&self) -> Running {
        self.running.clone()
    }

    fn next_replay(&self) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        Box::pin(async move { Ok(self.take_replays(1).await?.pop()) })
    }
}

async fn run<S: Store>(pipeline: Arc<Pipeline<S>>, mut source: DynSource, stop: Stop) -> Result<(), Error> {
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
    let sample = pipeline.instruments.sample(&pipeline.open, source.status());
    let work = async {
        let mut result = tokio::select! {
            biased;
            () = stop.drain.cancelled() => Ok(()),
            error = pull(&pipeline, &mut source, &slots, &queue) => Err(error.into()),
            () = replays(&pipeline, &queue) => unreachable!("replays never returns"),
            // Before the queue is closed a worker ends by a panic only.
            Some(ended) = workers.join_next() => ended.map_err(Error::from),
        };
        stop.drain.cancel();
        let _ = tokio::time::timeout(RELEASE_WAIT, source.close()).await;
        queue.close();
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

/// Pulls as many messages as there are slots, until the broker's client has come to its end.
async fn pull<S: Store>(
    pipeline: &Pipeline<S>,
    source: &mut DynSource,
    slots: &Arc<Semaphore>,
    queue: &Queue,
) -> BrokerError {
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
                pipeline.pace.step();
                failures = 0;
                for ((delivery, lease), slot) in deliveries.into_iter().zip(free) {
                    let job = Job::new(delivery, lease);
                    queue.push(Queued::new(&pipeline.in_flight, job, Some(slot)));
                }
            }
            Err(error) => {
                drop(free);
                failures += 1;
                let why = text(&error);
                let is_news = pipeline.trouble.broker(Some(why.clone()));
                if matches!(error, BrokerError::Ended(_)) {
                    return error;
                }
                // Once, not at each try.
                if is_news {
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
        let slot = slots.clone().acquire_owned().await.ok();
        let requested = replay::REQUESTED.notified();
        pipeline.trouble.passed().await;
        match pipeline.take_replays(1).await {
            Ok(mut jobs) => {
                if let Some(job) = jobs.pop() {
                    queue.push(Queued::new(&pipeline.in_flight, job, slot));
                    continue;
                }
            }
            Err(error) => tracing::debug!(error = %text(&error), "no dead letters can be replayed now"),
        }
        pipeline.stranded.look(S::NAME, &*pipeline.records).await;
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
        settling: Settling::new(pipeline.clone(), stop.now.clone()),
        next: NextInHand {
            pipeline: &pipeline,
            queue: &queue,
            current: None,
            message: None,
        },
    };
    while let Some((queued, decoded)) = worker.pop().await {
        worker.handle(queued, decoded).await;
    }
    worker.settling.settled().await;
}

struct Worker<'a, S: Store> {
    pipeline: &'a Pipeline<S>,
    queue: &'a Queue,
    stop: &'a Stop,
    session: Option<S::Session>,
    settling: Settling<S>,
    next: NextInHand<'a, S>,
}

impl<S: Store> Worker<'_, S> {
    async fn pop(&mut self) -> Option<(Queued, Option<Decoded<S>>)> {
        if let Some(message) = self.next.message.take() {
            return Some((message.queued, message.decoded));
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
        Some((self.wait().await?, None))
    }

    /// Waits for a message. What is still being settled may panic meanwhile, which must not be hidden until there is one.
    async fn wait(&mut self) -> Option<Queued> {
        let mut popped = std::pin::pin!(self.queue.pop());
        tokio::select! {
            biased;
            popped = &mut popped => return popped,
            () = self.settling.settled() => {}
        }
        popped.await
    }

    async fn release(&mut self) {
        if let Some(session) = self.session.take() {
            session.release().await;
        }
    }

    async fn handle(&mut self, mut queued: Queued, decoded: Option<Decoded<S>>) {
        self.next.current = Some(queued.job.lease.clone());
        let now = &self.stop.now;
        let done = now
            .run_until_cancelled(self.handle_until_done(&mut queued, decoded))
            .await;
        self.next.current = None;
        let Queued { mut job, hold, slot } = queued;
        let Some(done) = done.flatten() else {
            self.next.forget_successor();
            drop(hold);
            self.pipeline.release(&mut job, RELEASE_WAIT).await;
            return;
        };
        if !done.is_acknowledged() {
            self.next.forget_successor();
        }
        // The next one begins before this one is settled only where it is recognised if it comes again. A dead letter is
        // settled in the database, which the next message may keep busy for long.
        let recognised = self.pipeline.meta.ack == AckStrategy::ExactlyOnce && job.replay.is_none();
        if recognised && !self.next.follows() {
            // There is room for another one.
            drop(slot);
            self.settling.begin(job, hold, done).await;
        } else {
            self.settling.settle(job, hold, done).await;
        }
    }

    /// Handles a message, again and again while the database or the broker fails. `None` if the program stops first.
    async fn handle_until_done(&mut self, queued: &mut Queued, mut decoded: Option<Decoded<S>>) -> Option<Done> {
        let pipeline = self.pipeline;
        let mut failures = 0;
        loop {
            if self.stop.drain.is_cancelled() {
                return None;
            }
            queued.hold.handling(pipeline.meta.timeout);
            let stopped = queued.job.stopped_before_it_began(self.stop.drain.clone());
            let done = tokio::select! {
                biased;
                done = pipeline.process(&mut self.session, &mut queued.job, decoded.take(), &mut self.next) => done,
                // It waits for its turn at the database, behind handlers that are to finish.
                () = stopped => return None,
            };
            if !done.waits() {
                if done.outcome != Outcome::Deferred {
                    pipeline.trouble.leave();
                }
                return Some(done);
            }
            pipeline.count(Outcome::Deferred);
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
