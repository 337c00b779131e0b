//! A fresh broker and a fresh database with a probe, and the inbox on them.

use std::time::Duration;

use inbox_runtime::{DeadLetter, DeadLetterQuery, DeadLetters, Inbox, InboxBuilder, Outcome, dead_letters};

use crate::{
    broker::{Settled, TestBroker},
    database::TestDatabase,
    flaky::Flaky,
    probe::{Order, Probe},
};

/// Everything that one test is about.
#[derive(Clone, Debug)]
pub struct World<B: TestBroker, D> {
    /// The broker.
    pub broker: B,
    /// What the inbox is given in its place: the same, with faults to switch on.
    pub flaky: Flaky<B::Broker>,
    /// The database.
    pub database: D,
    /// What the handlers do and did.
    pub probe: Probe,
}

impl<B: TestBroker, D: TestDatabase> World<B, D> {
    /// A world with nothing in it.
    pub async fn new() -> Self {
        let broker = B::fresh().await;
        Self {
            flaky: Flaky::new(broker.connect()),
            broker,
            database: D::fresh().await,
            probe: Probe::default(),
        }
    }

    /// An inbox that runs the shared handlers of these groups.
    pub fn builder(&self, groups: &[&str]) -> InboxBuilder {
        self.builder_of("inbox_tests::handlers", groups)
    }

    /// The same with the handlers of another module, which has a module for each database too.
    pub fn builder_of(&self, module: &'static str, groups: &[&str]) -> InboxBuilder {
        Inbox::builder()
            .store(self.database.pool())
            .broker(self.flaky.clone())
            .state(self.probe.clone())
            .groups(groups.iter().copied())
            .select(move |meta| {
                let rest = meta.name.strip_prefix(module).and_then(|rest| rest.strip_prefix("::"));
                rest.is_some_and(|rest| rest.split("::").next() == Some(D::HANDLERS))
            })
    }

    /// The same, built.
    pub async fn inbox(&self, groups: &[&str]) -> Inbox {
        self.builder(groups).build().await.expect("an inbox")
    }

    /// Publishes an order to `order.created`, with that message id.
    pub async fn publish(&self, id: &str) {
        self.publish_to("order.created", id).await;
    }

    /// Publishes an order, with that message id.
    pub async fn publish_to(&self, subject: &str, id: &str) {
        let message = Order::new(format!("order-{id}")).to(subject).id(id.to_owned());
        self.broker.publish(message).await;
    }

    /// Lets the leases run out of the messages whose acknowledgement was lost, and every back-off.
    pub async fn lease_runs_out(&self) {
        self.broker.pass(Duration::from_secs(31)).await;
    }

    /// Whether the broker has a group's every message of `order.created` as settled.
    pub async fn settled(&self, group: &str) -> bool {
        self.broker.settled(group, "order.created").await == Some(Settled::ALL)
    }

    /// The dead letters of the database.
    pub fn dead_letters(&self) -> DeadLetters {
        dead_letters(&self.database.pool())
    }

    /// A group's dead letters.
    pub async fn letters(&self, group: &str) -> Vec<DeadLetter> {
        let query = DeadLetterQuery::default().group(group).limit(1000);
        self.dead_letters().list(query).await.expect("the dead letters")
    }

    /// A group's only dead letter.
    ///
    /// # Panics
    ///
    /// When there is none, or more than one.
    pub async fn letter(&self, group: &str) -> DeadLetter {
        let mut letters = self.letters(group).await;
        assert_eq!(letters.len(), 1, "dead letters of {group}: {letters:?}");
        letters.remove(0)
    }

    /// How many attempts are on record for a group's messages.
    pub async fn attempts(&self, group: &str) -> i64 {
        let sql = format!("SELECT coalesce(sum(attempts), 0) FROM inbox_attempts WHERE consumer_group = '{group}'");
        self.database.number(&sql).await
    }

    /// Asserts that a message is done: one effect, one inbox row.
    pub async fn assert_done(&self, group: &str, id: &str) {
        assert_eq!(self.database.effects(group, id).await, 1, "effects of {group} for {id}");
        assert_eq!(
            self.database.inbox(group, id).await,
            1,
            "inbox rows of {group} for {id}"
        );
    }

    /// Asserts that there are as many messages with an effect and an inbox row, each with one, and that none is dead-lettered.
    pub async fn assert_each_done_once(&self, count: i64) {
        let number = async |sql: &str| self.database.number(sql).await;
        assert_eq!(number("SELECT count(*) FROM effects").await, count);
        assert_eq!(number("SELECT count(DISTINCT msg_id) FROM effects").await, count);
        assert_eq!(number("SELECT count(*) FROM inbox_events").await, count);
        assert_eq!(number("SELECT count(*) FROM inbox_dead_letters").await, 0);
    }

    /// Asserts that a message has left no trace.
    pub async fn assert_untouched(&self, group: &str, id: &str) {
        assert_eq!(self.database.effects(group, id).await, 0, "effects of {group} for {id}");
        assert_eq!(
            self.database.inbox(group, id).await,
            0,
            "inbox rows of {group} for {id}"
        );
    }
}

/// Handles the next message; panics if there is none within a minute.
///
/// # Panics
///
/// When there is none, or the broker fails.
pub async fn next(inbox: &mut Inbox) -> Outcome {
    inbox
        .process_one(Duration::from_secs(60))
        .await
        .expect("the broker")
        .expect("a message within a minute")
}

/// Asserts that there is no further message.
///
/// # Panics
///
/// When there is one, or the broker fails.
pub async fn nothing_more(inbox: &mut Inbox) {
    let outcome = inbox.process_one(Duration::from_millis(300)).await.expect("the broker");
    assert_eq!(outcome, None, "a further message");
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// When it doesn't hold within two minutes, which is long for a machine that is busy with others too.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let start = std::time::Instant::now();
    while !condition().await {
        let waited = start.elapsed();
        assert!(waited < Duration::from_mins(2), "not within two minutes: {what}");
        tokio::time::sleep(pause(waited)).await;
    }
}

/// The time until the next look of somebody who has waited that long: looks take time from the servers and the processor, which
/// what is waited for needs too.
pub(crate) fn pause(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(10), Duration::from_millis(200))
}

/// Asserts that something takes no longer than `limit` at one of five tries: a busy machine may be late at any of them.
/// `attempt` returns how long it took.
///
/// # Panics
///
/// When each takes longer.
pub async fn in_time<F: Future<Output = Duration>>(limit: Duration, mut attempt: impl FnMut() -> F) {
    let mut taken = Vec::new();
    while taken.len() < 5 {
        let time = attempt().await;
        if time <= limit {
            return;
        }
        taken.push(time);
    }
    panic!("each longer than {limit:?}: {taken:?}");
}
