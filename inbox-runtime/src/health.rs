//! Whether an inbox runs and can work, and if not, why.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{broker::SourceStatus, handler::HandlerMeta, pipeline::PipelineStatus};

/// Whether an inbox runs, and whether it can work.
///
/// As JSON it is what `/readyz` answers: a time is a number of seconds, to the millisecond, and `lag` is left out where it
/// isn't known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// It has not come to an end.
    pub live: bool,
    /// It handles messages, or would if there were any: it has started, which takes a database that could be written to, and
    /// every handler can work.
    pub ready: bool,
    /// Why it is not ready.
    pub reasons: Vec<String>,
    /// What somebody should look at though it keeps no message from being handled: dead letters that are to be replayed by a
    /// handler that no running program has; an outbox that can't be relayed, is relayed by nobody, is full, or has messages that the
    /// broker refuses; a background service that panics each time it is run.
    pub warnings: Vec<String>,
    /// Each handler by itself; none before the inbox has started.
    pub handlers: Vec<HandlerHealth>,
}

/// Whether one handler can work, and what waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandlerHealth {
    /// The path of its function.
    pub handler: &'static str,
    /// Its consumer group.
    pub group: &'static str,
    /// Its subject, as it is declared.
    pub subject: &'static str,
    /// It can take part: the broker answers, the database can be used, every part of the source can be read, and it makes
    /// progress.
    pub ready: bool,
    /// Why no messages can be pulled; `None` if the broker answers.
    pub broker: Option<String>,
    /// Why messages can't be handled now; `None` if the database could be used for the last one.
    pub database: Option<String>,
    /// The parts of the source that can't be read, such as partitions without a leader, and what has made no progress for longer than its
    /// bounds allow, each with the reason.
    pub waiting: Vec<String>,
    /// The parts of the source that wait for the back-off of a message, such as partitions of a topic, each with the reason. They
    /// don't make it unready.
    pub back_offs: Vec<String>,
    /// How many messages wait for their back-off, of those that this process has nak'ed. They don't make it unready.
    pub backing_off: usize,
    /// How long it is until the first of them is redelivered.
    #[serde(serialize_with = "write_optional_seconds")]
    pub next_retry: Option<Duration>,
    /// How many deliveries are leased: handled now, or waiting for a worker.
    pub in_flight: usize,
    /// The time since the broker last answered or a message was settled. An idle handler asks every few seconds; a long
    /// time means that every worker is at a message, or stuck.
    #[serde(serialize_with = "write_seconds")]
    pub since_progress: Duration,
    /// The age of the oldest open handler transaction.
    #[serde(serialize_with = "write_optional_seconds")]
    pub oldest_transaction: Option<Duration>,
    /// How many messages the group has not acknowledged yet, over all its processes, where that is known; asked every few seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
}

/// A time in seconds, to the millisecond.
fn write_seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(rounded(*time))
}

fn write_optional_seconds<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(rounded).serialize(to)
}

fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// What one handler shows of itself while it runs.
pub(crate) struct HandlerStatus {
    pub(crate) meta: Arc<HandlerMeta>,
    pub(crate) pipeline: PipelineStatus,
    pub(crate) source: SourceStatus,
    /// How long it may make no progress beyond the handler's timeout.
    pub(crate) stall_after: Duration,
}

impl HandlerStatus {
    /// What has made no progress for longer than its bounds allow, whatever the cause.
    fn stalled(&self) -> Option<String> {
        self.acks_fail().or_else(|| self.idle()).or_else(|| self.hangs())
    }

    /// What is handled is not acknowledged.
    fn acks_fail(&self) -> Option<String> {
        let (time, why) = self.pipeline.progress.failing_acks()?;
        (time > self.stall_after).then(|| {
            format!(
                "every acknowledgement has failed for {}: {why}; the messages are redelivered, and deduplicated where they are \
                 claimed",
                seconds(time)
            )
        })
    }

    /// Nothing has been settled, nor has the broker answered.
    fn idle(&self) -> Option<String> {
        let idle = self.pipeline.progress.since_progress();
        // A pull may wait for a while where nothing is in flight.
        let pull = if self.pipeline.leases.len() > 0 {
            Duration::ZERO
        } else {
            PULL
        };
        (idle > self.bound().saturating_add(pull)).then(|| {
            format!(
                "no message was settled and the broker did not answer for {}, longer than the handler's timeout and `stall_after` \
                 ({}) allow, with {} messages in flight; a handler blocks its thread, or the broker's client hangs: look at \
                 the last lines of the log, and restart this program",
                seconds(idle),
                seconds(self.bound()),
                self.pipeline.leases.len()
            )
        })
    }

    /// One message hangs while others go on, or wait for it.
    fn hangs(&self) -> Option<String> {
        let longest = self.pipeline.leases.longest()?;
        (longest > self.bound()).then(|| {
            format!(
                "a message has been handled, or has waited for its acknowledgement, for {}, longer than the handler's timeout and \
                 `stall_after` ({}) allow; the handler blocks its thread, or the broker's client hangs: look at the last \
                 lines of the log, and restart this program",
                seconds(longest),
                seconds(self.bound()),
            )
        })
    }

    fn bound(&self) -> Duration {
        self.meta.timeout.saturating_add(self.stall_after)
    }

    fn health(&self) -> HandlerHealth {
        let availability = &self.pipeline.availability;
        let (database, broker) = (availability.database(), availability.broker());
        let mut waiting = self.source.reasons();
        if database.is_none() && broker.is_none() && waiting.is_empty() {
            waiting.extend(self.stalled());
        }
        let (backing_off, next_retry) = self.pipeline.progress.backing_off();
        HandlerHealth {
            handler: self.meta.name,
            group: self.meta.group,
            subject: self.meta.subject,
            ready: database.is_none() && broker.is_none() && waiting.is_empty(),
            broker,
            database,
            waiting,
            back_offs: self.source.back_offs(),
            backing_off,
            next_retry,
            in_flight: self.pipeline.leases.len(),
            since_progress: self.pipeline.progress.since_progress(),
            oldest_transaction: self.pipeline.open.oldest(),
            lag: self.source.lag(),
        }
    }
}

/// How long a pull without an answer is nothing to speak of: twice as long as it waits for a message.
const PULL: Duration = Duration::from_secs(10);

fn seconds(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(time.as_secs()))
}

const STARTING: u8 = 0;
const PREPARED: u8 = 1;
const RUNNING: u8 = 2;
const ENDED: u8 = 3;

/// Looks at the health of an inbox. Clones look at the same one, and none of them keeps it from being moved, run or
/// dropped: a route of a server can hold one.
///
/// ```
/// # #[cfg(all(feature = "embedded", feature = "sqlite"))]
/// # async fn example(inbox: inbox_runtime::Inbox) -> Result<(), inbox_runtime::Error> {
/// let watch = inbox.health_handle();
/// tokio::spawn(async move {
///     while watch.health().live {
///         tokio::time::sleep(std::time::Duration::from_secs(10)).await;
///         println!("{:?}", watch.health().reasons);
///     }
/// });
/// inbox.run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HealthHandle(Arc<Inner>);

struct Inner {
    state: AtomicU8,
    drain: CancellationToken,
    /// What the start waits for, each with the reason.
    waits: watch::Sender<BTreeMap<String, String>>,
    handlers: OnceLock<Vec<HandlerStatus>>,
}

impl HealthHandle {
    fn new() -> Self {
        Self(Arc::new(Inner {
            state: AtomicU8::new(STARTING),
            drain: CancellationToken::new(),
            waits: watch::Sender::default(),
            handlers: OnceLock::new(),
        }))
    }

    /// Returns when the start waits for something.
    pub(crate) async fn begins_to_wait(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.waits.subscribe().wait_for(|waits| !waits.is_empty()).await;
    }

    /// Whether the inbox runs, and whether it can work.
    #[must_use]
    pub fn health(&self) -> Health {
        let state = self.0.state.load(Ordering::Acquire);
        let reason = match state {
            ENDED => Some("the inbox has stopped"),
            _ if self.0.drain.is_cancelled() => Some("the inbox is stopping"),
            STARTING => Some("the inbox is starting"),
            PREPARED => Some("the inbox does not run yet"),
            _ => None,
        };
        let mut reasons: Vec<_> = reason.map(str::to_owned).into_iter().collect();
        let waits = self.0.waits.borrow().clone();
        reasons.extend(
            waits
                .iter()
                .map(|(database, why)| format!("waiting for {database}: {why}")),
        );
        let handlers: Vec<_> = self
            .0
            .handlers
            .get()
            .into_iter()
            .flatten()
            .map(HandlerStatus::health)
            .collect();
        for one in &handlers {
            let all = one.database.iter().chain(&one.broker).chain(&one.waiting);
            reasons.extend(all.map(|why| format!("{}: {why}", one.handler)));
        }
        Health {
            live: state != ENDED,
            ready: reasons.is_empty(),
            reasons,
            // All handlers of an inbox know the same.
            warnings: self
                .0
                .handlers
                .get()
                .and_then(|handlers| handlers.first())
                .map(|one| one.pipeline.warnings.all())
                .unwrap_or_default(),
            handlers,
        }
    }
}

impl fmt::Debug for HealthHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthHandle").finish_non_exhaustive()
    }
}

/// Held by the inbox: dropped with it, it says that it is over.
pub(crate) struct LifecycleGuard(HealthHandle);

impl LifecycleGuard {
    /// What tells the inbox to stop.
    pub(crate) fn drain(&self) -> CancellationToken {
        self.0.0.drain.clone()
    }

    /// The start waits for a database. Says so in the log when it begins, and when the reason changes.
    pub(crate) fn waits(&self, database: &str, why: String) {
        self.0.0.waits.send_if_modified(|waits| {
            let before = waits.get(database);
            if before == Some(&why) {
                return false;
            }
            tracing::warn!(database, error = why, "the start waits for the database");
            waits.insert(database.to_owned(), why);
            true
        });
    }

    /// The start has what it waited for, if it did.
    pub(crate) fn goes_on(&self, database: &str) {
        self.0.0.waits.send_if_modified(|waits| {
            let waited = waits.remove(database).is_some();
            if waited {
                tracing::info!(database, "the database that the start waited for can be used");
            }
            waited
        });
    }

    /// The start is over.
    pub(crate) fn prepared(&self, handlers: Vec<HandlerStatus>) {
        self.0.0.waits.send_modify(BTreeMap::clear);
        // Once in a life.
        let _ = self.0.0.handlers.set(handlers);
        self.0.0.state.store(PREPARED, Ordering::Release);
    }

    pub(crate) fn handle(&self) -> HealthHandle {
        self.0.clone()
    }

    pub(crate) fn begin(&self) {
        self.0.0.state.store(RUNNING, Ordering::Release);
    }
}

impl Default for LifecycleGuard {
    fn default() -> Self {
        Self(HealthHandle::new())
    }
}

impl Drop for LifecycleGuard {
    fn drop(&mut self) {
        self.0.0.state.store(ENDED, Ordering::Release);
    }
}
