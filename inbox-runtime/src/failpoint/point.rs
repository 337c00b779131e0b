//! The named points on the path of a message, and the watch that a harness keeps on one task.

use std::{fmt, future, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::{delivery::Delivery, handler::HandlerMeta, identity, outcome::Outcome};

/// A point on the path of a message at which [`Harness::crash_at`](crate::testing::Harness::crash_at) lets the process die.
///
/// ```text
/// BeforeAttempt ─ AfterAttempt ─ AfterDecode ─ AfterBegin ─ AfterClaim ─ the handler ─ BeforeSeal ─ BeforeCommit
///   (a redelivery only)                                                    Handler("…")                  │
///                                                                  AfterAck ─ BeforeAck ─ AfterCommit ◀──┘
/// ```
///
/// Under `at_most_once` `BeforeAck` and `AfterAck` come after `AfterDecode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Point {
    /// A message was redelivered; its attempt is not on record yet.
    BeforeAttempt,
    /// A message was redelivered and its attempt is on record, if it is made.
    AfterAttempt,
    /// The arguments are made from the delivery; there is no transaction yet.
    AfterDecode,
    /// The transaction is open and nothing is written.
    AfterBegin,
    /// The inbox row is written, not committed. Only under `exactly_once`.
    AfterClaim,
    /// A call of [`point`] with this name in the handler.
    Handler(&'static str),
    /// The handler has returned, with success or an error.
    BeforeSeal,
    /// The handler has succeeded, and the commit is the next thing to be sent. (On PostgreSQL the seal goes with it.)
    BeforeCommit,
    /// The transaction is committed; nothing is acknowledged.
    AfterCommit,
    /// A dead letter is written, not committed.
    InDeadLetter,
    /// The acknowledgement is the next thing to be sent.
    BeforeAck,
    /// The broker has the acknowledgement.
    AfterAck,
    /// Messages of the outbox are sent and confirmed; their rows are still there.
    OutboxAfterSend,
    /// The rows of messages that were sent are deleted.
    OutboxAfterDelete,
}

impl Point {
    /// Every point that is the runtime's own.
    pub const ALL: [Self; 13] = [
        Self::BeforeAttempt,
        Self::AfterAttempt,
        Self::AfterDecode,
        Self::AfterBegin,
        Self::AfterClaim,
        Self::BeforeSeal,
        Self::BeforeCommit,
        Self::AfterCommit,
        Self::InDeadLetter,
        Self::BeforeAck,
        Self::AfterAck,
        Self::OutboxAfterSend,
        Self::OutboxAfterDelete,
    ];

    /// The point's name, in snake case; that of a place in a handler is its own.
    ///
    /// ```
    /// use inbox_runtime::testing::Point;
    ///
    /// assert_eq!(Point::AfterCommit.as_str(), "after_commit");
    /// assert_eq!(Point::Handler("paid").as_str(), "paid");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeAttempt => "before_attempt",
            Self::AfterAttempt => "after_attempt",
            Self::AfterDecode => "after_decode",
            Self::AfterBegin => "after_begin",
            Self::AfterClaim => "after_claim",
            Self::Handler(name) => name,
            Self::BeforeSeal => "before_seal",
            Self::BeforeCommit => "before_commit",
            Self::AfterCommit => "after_commit",
            Self::InDeadLetter => "in_dead_letter",
            Self::BeforeAck => "before_ack",
            Self::AfterAck => "after_ack",
            Self::OutboxAfterSend => "outbox_after_send",
            Self::OutboxAfterDelete => "outbox_after_delete",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A point in a handler at which a test can let the process die, by [`Point::Handler`] with the same name.
///
/// It does nothing outside of a [`Harness`](crate::testing::Harness), and in a task that the handler has spawned. It needs the
/// feature `testing`: a crate that has it among its dev-dependencies only calls it under `#[cfg(test)]`.
///
/// # Cancel safety
///
/// Dropping it has no effect.
///
/// # Examples
///
/// ```
/// use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};
///
/// #[inbox_handler(group = "billing", subject = "order.created")]
/// async fn create_invoice(tx: &mut SqliteConnection) -> Result<(), HandlerError> {
///     // … the first half …
///     #[cfg(test)]
///     inbox_runtime::testing::point("half").await;
///     // … the second half …
///     Ok(())
/// }
/// ```
pub async fn point(name: &'static str) {
    let stops = |watch: &Arc<Watch>| watch.stops_at(Point::Handler(name));
    if WATCH.try_with(stops).unwrap_or_default() {
        // The harness drops the task's future.
        future::pending::<()>().await;
    }
}

/// The same for a point of the runtime.
pub(crate) async fn reach_named(name: &str) {
    let stops = |watch: &Arc<Watch>| {
        let point = Point::ALL.into_iter().find(|point| point.as_str() == name);
        point.is_some_and(|point| watch.stops_at(point))
    };
    if WATCH.try_with(stops).unwrap_or_default() {
        future::pending::<()>().await;
    }
}

tokio::task_local! {
    /// Set only in the task that a harness drives: tests that run beside it are not affected.
    static WATCH: Arc<Watch>;
}

/// What the pipeline notifies the harness of.
#[derive(Debug)]
pub(crate) enum HarnessEvent<'a> {
    /// Why a message was not simply handled.
    Error(&'a str),
    /// A delivery was settled.
    Settled(Settled),
}

impl HarnessEvent<'_> {
    pub(crate) fn settled(meta: &HandlerMeta, delivery: &Delivery, outcome: Outcome) -> Self {
        Self::Settled(Settled {
            handler: meta.name,
            message_id: message_id(delivery, meta),
            outcome,
            error: None,
        })
    }
}

/// The id by which a handler knows a message; the position where its own can't be read.
pub(crate) fn message_id(delivery: &Delivery, meta: &HandlerMeta) -> String {
    identity::of(delivery, meta.id).map_or_else(|_| delivery.position.clone(), |identity| identity.id)
}

/// Notifies the harness that watches this task, if there is one.
pub(crate) fn notify<'a>(event: impl FnOnce() -> HarnessEvent<'a>) {
    // It fails outside of a harness.
    let _ = WATCH.try_with(|watch| watch.record(event()));
}

/// A delivery that was settled, and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) handler: &'static str,
    pub(crate) message_id: String,
    pub(crate) outcome: Outcome,
    /// Why it was not simply handled.
    pub(crate) error: Option<String>,
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was {} by {}", self.message_id, self.outcome, self.handler)?;
        match &self.error {
            Some(error) => write!(f, " ({error})"),
            None => Ok(()),
        }
    }
}

/// What a harness observes of the task that it drives.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    armed: Option<Point>,
    stopped: Notify,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    points: Vec<Point>,
    error: Option<String>,
    settled: Option<Settled>,
}

impl Watch {
    pub(crate) fn new(armed: Option<Point>) -> Arc<Self> {
        Arc::new(Self {
            armed,
            ..Self::default()
        })
    }

    /// Runs a future under this watch.
    pub(crate) async fn over<F: Future>(self: &Arc<Self>, watched: F) -> F::Output {
        WATCH.scope(self.clone(), watched).await
    }

    /// Returns when the task has reached the armed point.
    pub(crate) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// The points that the task has reached, in order and each once.
    pub(crate) fn points(&self) -> Vec<Point> {
        self.seen().points.clone()
    }

    /// The delivery that was settled last, once.
    pub(crate) fn settled(&self) -> Option<Settled> {
        self.seen().settled.take()
    }

    fn stops_at(&self, point: Point) -> bool {
        let mut seen = self.seen();
        if !seen.points.contains(&point) {
            seen.points.push(point);
        }
        let stops = self.armed == Some(point);
        if stops {
            self.stopped.notify_one();
        }
        stops
    }

    fn record(&self, event: HarnessEvent<'_>) {
        let mut seen = self.seen();
        match event {
            HarnessEvent::Error(text) => seen.error = Some(text.to_owned()),
            HarnessEvent::Settled(settled) => {
                let error = seen.error.take();
                seen.settled = Some(Settled { error, ..settled });
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// The names that stand in `failpoint!`s beneath that folder.
    fn named_in(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("the sources") {
            let path = entry.expect("the sources").path();
            if path.is_dir() {
                named_in(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("the sources");
                let marks = text.split("failpoint!(\"").skip(1);
                names.extend(
                    marks
                        .filter_map(|rest| rest.split_once("\")"))
                        .map(|(name, _)| name.to_owned()),
                );
            }
        }
    }

    #[test]
    fn every_point_of_the_runtime_can_be_asked_for() {
        let mut names = BTreeSet::new();
        for folder in ["pipeline", "services", "store"] {
            named_in(
                &Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder),
                &mut names,
            );
        }
        let points: BTreeSet<_> = Point::ALL.iter().map(|point| point.as_str().to_owned()).collect();
        assert_eq!(points, names);
    }

    #[tokio::test]
    async fn outside_of_a_harness_a_point_is_nothing() {
        point("half").await;
        reach_named("after_commit").await;
    }
}
