//! The inbox of a program: the selected handlers on their broker and databases, and the ways to run them.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::select_all;
use tokio::{task::JoinSet, time::Instant};

mod builder;
mod databases;
mod erased;
mod handle;
mod left_behind;
mod nudge;
mod outboxes;
mod plan;
mod start;
mod startup_checks;

pub use builder::InboxBuilder;
pub use handle::InboxHandle;

use crate::{
    broker::{DynSource, SourceStatus},
    consumer::{Runner, Stop},
    counters::{Counters, Report},
    error::Error,
    error_chain::text,
    handler::HandlerMeta,
    health::{HealthHandle, LifecycleGuard},
    outcome::Outcome,
    pipeline::Job,
    services::{Relay, Services},
};
use left_behind::Handlers;
use nudge::Nudge;

/// How often [`Inbox::process_one`] looks for dead letters to replay while it waits for a message.
const REPLAY_INTERVAL: Duration = Duration::from_millis(500);

/// The handlers of a program, checked, connected and subscribed. Made by [`Inbox::builder`].
pub struct Inbox {
    runners: Vec<HandlerRunner>,
    services: Services,
    /// For [`process_one`](Self::process_one) and its like, under which no service runs.
    relays: Vec<Arc<Relay>>,
    descriptions: Vec<String>,
    counters: Arc<Counters>,
    stop: Stop,
    life: LifecycleGuard,
    /// Health and metrics are served as long as this is there.
    #[cfg(feature = "http")]
    serving: Option<crate::http::Serving>,
    shutdown_timeout: Duration,
    shutdown: Option<builder::Signal>,
    abort: Option<builder::Signal>,
    /// The handler that is looked at first for the next message, so that none starves.
    next: usize,
}

/// One handler with its source.
struct HandlerRunner {
    meta: Arc<HandlerMeta>,
    runner: Arc<dyn Runner>,
    source: DynSource,
}

impl Inbox {
    /// Begins to set up an inbox.
    pub fn builder() -> InboxBuilder {
        InboxBuilder::default()
    }

    /// What became of the deliveries so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.counters.report()
    }

    /// The versions of the broker and of the databases that it runs on, as the start report has them: one line each, the
    /// broker first.
    pub fn describe(&self) -> impl Iterator<Item = &str> {
        self.descriptions.iter().map(String::as_str)
    }

    /// The handlers that it runs, with what `inbox.toml` says of them in place of their attributes.
    pub fn handlers(&self) -> impl Iterator<Item = &HandlerMeta> {
        self.runners.iter().map(|handler| &*handler.meta)
    }

    /// Looks at the health of this inbox while it runs and after it has ended.
    #[must_use]
    pub fn health_handle(&self) -> HealthHandle {
        self.life.handle()
    }

    /// Where the runtime serves health and metrics, if it does.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn http_addr(&self) -> Option<std::net::SocketAddr> {
        self.serving.as_ref().map(crate::http::Serving::addr)
    }

    /// Waits for one message, handles and settles it. Returns `None` when there was none within `timeout`; a `timeout` of
    /// zero takes what is ready. For tests and one-shot jobs.
    ///
    /// # Errors
    ///
    /// When the broker can't be asked.
    ///
    /// # Cancel safety
    ///
    /// A message that is being handled when this is dropped is rolled back and is redelivered when its lease runs out.
    pub async fn process_one(&mut self, timeout: Duration) -> Result<Option<Outcome>, Error> {
        // Later than the clock can tell is never.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(outcome) = self.process_ready(Duration::ZERO).await? {
                return Ok(Some(outcome));
            }
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            // One that was told to stop before it had started has no handlers.
            if left.is_zero() || self.runners.is_empty() {
                return Ok(None);
            }
            if let Some((index, job)) = self.wait(left.min(REPLAY_INTERVAL)).await? {
                return Ok(Some(self.step(index, job).await));
            }
        }
    }

    /// Handles messages, one at a time, until none is ready. A message that waits for its back-off isn't ready. Returns
    /// what this call has done. For tests and one-shot jobs.
    ///
    /// # Errors
    ///
    /// When the broker can't be asked.
    pub async fn run_until_idle(&mut self) -> Result<Report, Error> {
        let before = self.report();
        let idle_after = self
            .runners
            .iter()
            .map(|handler| handler.source.idle_after())
            .max()
            .unwrap_or_default();
        while self.process_ready(idle_after).await?.is_some() {}
        Ok(self.report().since(&before))
    }

    /// Releases what is fetched and waits, for a few seconds at most, until the broker knows what was acknowledged: for
    /// jobs that end after [`process_one`](Self::process_one) or [`run_until_idle`](Self::run_until_idle). Dropped, an inbox
    /// does the same in the background, for which a program that ends may leave no time.
    pub async fn close(mut self) {
        for handler in &mut self.runners {
            handler.source.close().await;
        }
    }

    /// Runs until it is told to stop by the builder's `shutdown` future; without one, for ever.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`] when it was told to stop twice, [`Error::Blocked`] when it stopped without handlers that block
    /// their threads (as long as another thread of the runtime is free to notice it), [`Error::Task`] when one of its own tasks panicked,
    /// [`Error::Broker`] when a broker's client has come to its end: only a new start helps then, as after another member of a
    /// Kafka group has taken its `group.instance.id`. A broker or a database that can't be reached is waited for.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it stops at once: handlers are rolled back and their messages are redelivered when their leases run out.
    pub async fn run(self) -> Result<Report, Error> {
        self.drive().await
    }

    /// Runs in the background.
    #[must_use = "the handle stops and watches the inbox"]
    pub fn spawn(self) -> InboxHandle {
        #[cfg(feature = "http")]
        let http_addr = self.http_addr();
        let (stop, counters, health) = (self.stop.clone(), self.counters.clone(), self.health_handle());
        // Not only when the task first runs.
        self.life.begin();
        InboxHandle {
            stop,
            task: tokio::spawn(self.drive()),
            counters,
            health,
            #[cfg(feature = "http")]
            http_addr,
        }
    }

    async fn drive(self) -> Result<Report, Error> {
        let (stop, life) = (self.stop, self.life);
        life.begin();
        // Until the drain is over: readiness is asked for while it goes on.
        #[cfg(feature = "http")]
        let _serving = self.serving;
        let services = self.services.start(&stop.drain);
        let mut tasks = JoinSet::new();
        let mut handlers = Vec::new();
        let mut sources = Vec::new();
        for handler in self.runners {
            sources.push((handler.meta.name, handler.source.status()));
            handlers.push((handler.meta, handler.runner.running()));
            tasks.spawn(handler.runner.run(handler.source, stop.clone()));
        }
        let _nudge = Nudge::start(handlers.iter().map(|(_, running)| running.clone()).collect());
        // A program that only relays runs until it is told to stop.
        let only_relays = handlers.is_empty() && !self.relays.is_empty();
        let drain = stop.drain.clone();
        let ended = supervise(tasks, stop.clone(), Handlers(handlers));
        let mut ended = std::pin::pin!(async {
            if only_relays {
                drain.cancelled().await;
            }
            ended.await
        });
        let stopping = stop_in_time(stop, self.shutdown, self.abort, self.shutdown_timeout);
        let mut stopping = std::pin::pin!(stopping);
        let mut aborted = None;
        let result = loop {
            tokio::select! {
                result = &mut ended => break result,
                twice = &mut stopping, if aborted.is_none() => aborted = Some(twice),
            }
        };
        count_unconfirmed(&sources, &self.counters);
        services.stopped().await;
        let report = self.counters.report();
        tracing::info!(%report, "stopped");
        result?;
        match aborted {
            Some(true) => Err(Error::Aborted),
            _ => Ok(report),
        }
    }

    /// Publishes what waits in the outboxes, as the services do while the inbox runs.
    pub(crate) async fn relay_now(&mut self) {
        for relay in &self.relays {
            relay.flush().await;
        }
    }

    /// Handles a message that is ready, of whichever handler has one.
    async fn process_ready(&mut self, wait: Duration) -> Result<Option<Outcome>, Error> {
        // What was published before is a message that may be ready.
        self.relay_now().await;
        for offset in 0..self.runners.len() {
            let index = (self.next + offset) % self.runners.len();
            let handler = &mut self.runners[index];
            let replay = handler.runner.next_replay().await.unwrap_or_else(|error| {
                tracing::debug!(error = %text(&error), "no dead letters can be replayed now");
                None
            });
            let job = match replay {
                Some(job) => Some(job),
                None => first(handler.source.pull(1, Duration::ZERO).await?),
            };
            if let Some(job) = job {
                return Ok(Some(self.step(index, job).await));
            }
        }
        if wait.is_zero() {
            return Ok(None);
        }
        match self.wait(wait).await? {
            Some((index, job)) => Ok(Some(self.step(index, job).await)),
            None => Ok(None),
        }
    }

    /// Waits for a message from any source.
    async fn wait(&mut self, wait: Duration) -> Result<Option<(usize, Job)>, Error> {
        let mut pulls: Vec<_> = self
            .runners
            .iter_mut()
            .map(|handler| handler.source.pull(1, wait))
            .collect();
        let mut indices: Vec<usize> = (0..pulls.len()).collect();
        while !pulls.is_empty() {
            let (pulled, index, rest) = select_all(pulls).await;
            // `select_all` takes the finished one out as `swap_remove` does.
            let handler = indices.swap_remove(index);
            if let Some(job) = first(pulled?) {
                return Ok(Some((handler, job)));
            }
            pulls = rest;
        }
        Ok(None)
    }

    async fn step(&mut self, index: usize, job: Job) -> Outcome {
        self.next = (index + 1) % self.runners.len();
        let handler = &self.runners[index];
        handler.runner.step(job, handler.source.ack_wait()).await
    }
}

fn first(deliveries: Vec<(crate::delivery::Delivery, crate::broker::DynLease)>) -> Option<Job> {
    deliveries
        .into_iter()
        .next()
        .map(|(delivery, lease)| Job::new(delivery, lease))
}

/// Counts what was acknowledged and not confirmed by the broker when its source was closed.
fn count_unconfirmed(sources: &[(&'static str, SourceStatus)], counters: &Counters) {
    for (handler, status) in sources {
        let unconfirmed = status.unconfirmed();
        if unconfirmed > 0 {
            counters.count_unconfirmed(unconfirmed);
            tracing::warn!(
                handler,
                "{unconfirmed} acknowledgements were not confirmed by the broker; their messages may come again, and are \
                 then found to be duplicates where they are claimed"
            );
        }
    }
}

/// Waits until every handler has ended, or every one that doesn't block its thread. The error is the first that one ended
/// with: nothing is hidden, and the others are drained.
async fn supervise(mut tasks: JoinSet<Result<(), Error>>, stop: Stop, handlers: Handlers) -> Result<(), Error> {
    let mut left_behind = std::pin::pin!(handlers.left_behind(stop.now));
    let mut result = Ok(());
    loop {
        let joined = tokio::select! {
            joined = tasks.join_next() => joined,
            // Their tasks are aborted with the others; they notice it when they return.
            blocked = &mut left_behind => {
                blocked.log();
                return result.and(Err(Error::Blocked(blocked)));
            }
        };
        let Some(joined) = joined else { return result };
        // One of our own tasks panicked, or a broker's client has ended.
        let ended = joined.map_err(Error::from).flatten();
        if ended.is_err() {
            stop.drain.cancel();
        }
        result = result.and(ended);
    }
}

/// Waits for the word to stop and sees to it that it is followed in time. Returns whether it came twice.
async fn stop_in_time(
    stop: Stop,
    shutdown: Option<builder::Signal>,
    abort: Option<builder::Signal>,
    timeout: Duration,
) -> bool {
    tokio::select! {
        () = signalled(shutdown) => stop.drain.cancel(),
        () = stop.drain.cancelled() => {}
    }
    tokio::select! {
        () = tokio::time::sleep(timeout) => {
            tracing::warn!(timeout_s = timeout.as_secs_f64(), "handlers that are still running are rolled back");
            stop.now.cancel();
            false
        }
        () = signalled(abort) => {
            stop.now.cancel();
            true
        }
    }
}

async fn signalled(signal: Option<builder::Signal>) {
    match signal {
        Some(signal) => signal.await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("handlers", &self.runners.len())
            .finish_non_exhaustive()
    }
}
