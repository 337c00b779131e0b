//! The harness: handlers on a broker in memory and a database of the test, one message at a time.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use super::{
    database::TestPool,
    failure::{Caller, list},
    outbox::RelayTarget,
};
use crate::{
    broker::{
        Published,
        embedded::{Embedded, Stage},
    },
    counters::Report,
    delivery::Message,
    failpoint::{Point, Settled, Watch},
    inbox::{Inbox, InboxBuilder},
    outcome::Outcome,
};

/// How many deliveries one call handles before it gives up.
const MAX_DELIVERIES: u32 = 10_000;
/// How long a claim waits unless the test says otherwise.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Handlers on an embedded broker in memory and on a database of the test. See the [module](crate::testing).
///
/// Its methods panic where an expectation isn't met, with what was expected, what was there, and the line of the test.
///
/// # Cancel safety
///
/// A method that is dropped half-way is a crash of the handler: what it wrote is rolled back, and the message is redelivered
/// when its lease has expired.
///
/// # Examples
///
/// ```standalone_crate
/// # #[cfg(all(feature = "macros", feature = "sqlite"))]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use inbox_runtime::{HandlerError, Message, Outcome, inbox_handler, sqlx::SqliteConnection};
/// use inbox_runtime::testing::{Harness, TempSqlite};
///
/// #[inbox_handler(group = "billing", subject = "order.created")]
/// async fn create_invoice(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
///     Ok(())
/// }
///
/// let database = TempSqlite::new("").await;
/// let mut inbox = Harness::start(database.pool(), |inbox| inbox.groups(["billing"])).await;
/// inbox.publish(Message::new("order.created", "{}").id("evt-1")).await;
/// assert_eq!(inbox.outcome("evt-1").await, Outcome::Processed);
/// // The acknowledgement is lost, and the message is delivered again.
/// inbox.redeliver("evt-1").await;
/// let report = inbox.run_until_settled().await;
/// assert_eq!((report.processed, report.duplicate), (0, 1));
/// # }
/// # #[cfg(not(all(feature = "macros", feature = "sqlite")))]
/// # fn main() {}
/// ```
pub struct Harness<P> {
    pub(super) pool: P,
    pub(super) broker: Embedded,
    pub(super) relayed: RelayTarget,
    configure: Box<dyn Fn(InboxBuilder) -> InboxBuilder + Send>,
    pub(super) inbox: Inbox,
    /// The settled deliveries whose outcome was not asked for yet, oldest first.
    settled: VecDeque<Settled>,
    /// The same for all of them, as text.
    pub(super) history: Vec<String>,
}

impl<P: TestPool> Harness<P> {
    /// Starts on that database. `configure` sets what else the inbox needs, above all its groups and its states; it is
    /// called for the first start and for the one after each crash, as the `main` of a program is. The inbox's tables are
    /// made if they are not there.
    ///
    /// ```standalone_crate
    /// # #[cfg(all(feature = "macros", feature = "sqlite"))]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # use inbox_runtime::{HandlerError, State, inbox_handler, sqlx::SqliteConnection};
    /// use inbox_runtime::testing::{Harness, TempSqlite};
    ///
    /// # #[inbox_handler(group = "mail", subject = "user.created")]
    /// # async fn welcome(_tx: &mut SqliteConnection, _sender: State<&'static str>) -> Result<(), HandlerError> { Ok(()) }
    /// let database = TempSqlite::new("").await;
    /// let inbox = Harness::start(database.pool(), |inbox| inbox.groups(["mail"]).state("shop@example.com")).await;
    /// # drop(inbox);
    /// # }
    /// # #[cfg(not(all(feature = "macros", feature = "sqlite")))]
    /// # fn main() {}
    /// ```
    ///
    /// # Panics
    ///
    /// When the inbox can't start; the text is that of [`Error::Start`](crate::Error::Start).
    #[track_caller]
    pub fn start<F>(pool: &P, configure: F) -> impl Future<Output = Self> + use<P, F>
    where
        F: Fn(InboxBuilder) -> InboxBuilder + Send + 'static,
    {
        let caller = Caller::here();
        let (pool, broker) = (pool.clone(), Embedded::memory().keep_forever());
        // What is ready does not depend on how fast the test is.
        broker.stop_clock();
        async move {
            let relayed = RelayTarget::new(broker.clone());
            let inbox = start(&pool, &relayed, &configure, caller).await;
            Self {
                pool,
                broker,
                relayed,
                configure: Box::new(configure),
                inbox,
                settled: VecDeque::new(),
                history: Vec::new(),
            }
        }
    }

    /// The broker, to inspect or to pass to the code under test.
    #[must_use]
    pub const fn broker(&self) -> &Embedded {
        &self.broker
    }

    /// Publishes a message.
    ///
    /// # Panics
    ///
    /// When its subject is none to publish to.
    #[track_caller]
    pub fn publish(&self, message: Message) -> impl Future<Output = Published> + Send + use<P> {
        let (caller, broker) = (Caller::here(), self.broker.clone());
        async move {
            let published = broker.publish(message).await;
            published.unwrap_or_else(|error| caller.fail(format_args!("the message was not published: {error}")))
        }
    }

    /// The outcome of the next delivery of the message with that id: handles messages until it is handled. Each outcome is
    /// returned once, so that a second call is about the next delivery. (With more than one group, each has its own.)
    ///
    /// # Panics
    ///
    /// When there is no further delivery of it.
    #[track_caller]
    pub fn outcome(&mut self, id: &str) -> impl Future<Output = Outcome> {
        let caller = Caller::here();
        async move {
            let expected = format!("expected a delivery of `{id}`");
            self.next_of(id, &expected, caller).await.outcome
        }
    }

    /// Asserts what becomes of the next delivery of the message with that id, as [`outcome`](Self::outcome) tells it.
    ///
    /// # Panics
    ///
    /// When it has another outcome, with the error that led to it, or when there is no further delivery.
    #[track_caller]
    pub fn assert_outcome(&mut self, id: &str, expected: Outcome) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let expectation = format!("expected `{id}` to be {expected}");
            let settled = self.next_of(id, &expectation, caller).await;
            if settled.outcome != expected {
                caller.fail(format_args!("{expectation}, but {settled}"));
            }
        }
    }

    /// Handles messages until every one is settled, those that wait for their back-off included. Returns what this call
    /// has done.
    ///
    /// # Panics
    ///
    /// When there is no end to it: a handler with `max_attempts = "unlimited"` fails for ever.
    #[track_caller]
    pub fn run_until_settled(&mut self) -> impl Future<Output = Report> {
        let caller = Caller::here();
        async move {
            let before = self.inbox.report();
            let watch = Watch::new(None);
            for _ in 0..MAX_DELIVERIES {
                if !self.step(&watch, caller).await {
                    return self.inbox.report().since(&before);
                }
            }
            self.fail_unfinished("every message to be settled", caller)
        }
    }

    /// Handles messages until one reaches that point. There the process dies as under SIGKILL, and another one starts;
    /// the broker's clock is advanced until the dead process' leases have expired. What was not acknowledged is
    /// redelivered.
    ///
    /// # Panics
    ///
    /// When no message reaches that point; the text lists the points that were reached.
    #[track_caller]
    pub fn crash_at(&mut self, point: Point) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let watch = Watch::new(Some(point));
            for _ in 0..MAX_DELIVERIES {
                let more = tokio::select! {
                    biased;
                    () = watch.stopped() => {
                        return self.die(caller).await;
                    }
                    more = self.step(&watch, caller) => more,
                };
                if !more {
                    let points: Vec<_> = watch.points().iter().map(|point| point.as_str()).collect();
                    caller.fail(format_args!(
                        "expected a crash at {point}, but no message reached it; points that were reached: {}; {}",
                        list(&points, ", "),
                        self.past()
                    ));
                }
            }
            self.fail_unfinished(&format!("a crash at {point}"), caller)
        }
    }

    /// Lets the broker redeliver a message, even if it was acknowledged: as if the acknowledgement had been lost.
    ///
    /// # Panics
    ///
    /// When no message of that id was delivered yet.
    #[track_caller]
    pub fn redeliver(&mut self, id: &str) -> impl Future<Output = ()> {
        let caller = Caller::here();
        async move {
            let mut found = false;
            for (meta, traced) in self.find(id, caller).await {
                if traced.stage == Stage::Waiting {
                    continue;
                }
                let redelivered = self.broker.redeliver(meta.group, meta.subject, &traced).await;
                redelivered.unwrap_or_else(|error| caller.fail(format_args!("`{id}` was not redelivered: {error}")));
                found = true;
            }
            if !found {
                let there = self.whereabouts(id, caller).await;
                caller.fail(format_args!(
                    "expected `{id}` to have been delivered before it is redelivered, but {there}"
                ));
            }
        }
    }

    /// Advances the broker's clock, by which leases and back-offs end, and which stands still otherwise.
    pub fn advance_clock(&self, by: Duration) {
        self.broker.advance_clock(by);
    }

    /// The next delivery of a message whose outcome was not asked for yet.
    async fn next_of(&mut self, id: &str, expected: &str, caller: Caller) -> Settled {
        let watch = Watch::new(None);
        for _ in 0..MAX_DELIVERIES {
            let found = self.settled.iter().position(|settled| settled.message_id == id);
            if let Some(settled) = found.and_then(|index| self.settled.remove(index)) {
                return settled;
            }
            if !self.step(&watch, caller).await {
                let there = self.whereabouts(id, caller).await;
                caller.fail(format_args!("{expected}, but {there}"));
            }
        }
        self.fail_unfinished(&format!("a delivery of `{id}`"), caller)
    }

    /// Handles one message; where none is ready, advances the clock to the next one. Returns whether there was one.
    async fn step(&mut self, watch: &Arc<Watch>, caller: Caller) -> bool {
        for _ in 0..MAX_DELIVERIES {
            let handled = watch.over(self.inbox.process_one(Duration::ZERO)).await;
            let handled = handled.unwrap_or_else(|error| caller.fail(format_args!("the broker failed: {error}")));
            if let Some(settled) = watch.settled() {
                self.history.push(settled.to_string());
                self.settled.push_back(settled);
            }
            if handled.is_some() {
                return true;
            }
            match self.next_due(caller).await {
                Some(wait) => self.broker.advance_clock(wait),
                None => return false,
            }
        }
        self.fail_unfinished("a message that is due to be delivered", caller)
    }

    /// Replaces the process by another one.
    async fn die(&mut self, caller: Caller) {
        let leases = self.broker.consumers().await;
        let leases = leases.unwrap_or_else(|error| caller.fail(format_args!("the broker failed: {error}")));
        self.inbox = start(&self.pool, &self.relayed, &self.configure, caller).await;
        self.history.push("the process died and another one started".to_owned());
        let lease = leases
            .iter()
            .map(|consumer| consumer.ack_wait)
            .max()
            .unwrap_or_default();
        self.broker.advance_clock(lease);
    }

    fn fail_unfinished(&self, expected: &str, caller: Caller) -> ! {
        let last = self.history.last().map_or("nothing", String::as_str);
        caller.fail(format_args!(
            "expected {expected}, but it was not there after {MAX_DELIVERIES} deliveries; the last: {last}"
        ))
    }
}

async fn start<P: TestPool>(
    pool: &P,
    broker: &RelayTarget,
    configure: &(impl Fn(InboxBuilder) -> InboxBuilder + ?Sized),
    caller: Caller,
) -> Inbox {
    // A database takes a moment to notice that a client has died, for which the claim of its message waits.
    let builder = Inbox::builder()
        .store(pool.clone())
        .broker(broker.clone())
        .lock_wait(LOCK_WAIT);
    let built = configure(builder).build().await;
    built.unwrap_or_else(|error| caller.fail(format_args!("{error:?}")))
}

impl<P> fmt::Debug for Harness<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness")
            .field("inbox", &self.inbox)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}
