//! The embedded broker: in a SQLite file of its own, or in memory.
//!
//! ```text
//!  publish ─▶ waiting ─ fetch ─▶ pending ─ ack ─▶ settled ─ retention ─▶ deleted
//!                                │    ▲
//!          nak or lease expired  ▼    │  fetch
//!                            redelivery due
//!
//!  floors; a line uses only itself and what is below it
//!    mod                                                    Embedded, the public type
//!    source · background · publish                          pulls, background tasks, new messages
//!    lease · fetch · subscribe · lag · trace                a source's statements
//!    ack_writer · cleanup · idle_consumers · consumer_info  other statements
//!    shared                                                 what clones, sources and leases share
//!    db · wakeups · ack_queue                               connections, waiting pulls, acks to be written
//!    consumer · connection · message
//!    storage · retention · clock · limits
//! ```
//!
//! A consumer's position is the last message that it scanned; what it was delivered and hasn't settled are its pending rows.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::sync::Notify;

use inbox_rules::subject_rules;

use self::{consumer::Consumer, db::Db, shared::EmbeddedShared, storage::Storage, subscribe::OpenedConsumer};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    delivery::Message,
};

mod ack_queue;
mod ack_writer;
mod background;
mod cleanup;
mod clock;
mod connection;
mod consumer;
mod consumer_info;
mod db;
mod fetch;
mod idle_consumers;
mod lag;
mod lease;
mod limits;
mod message;
mod publish;
mod retention;
mod shared;
mod source;
mod storage;
mod subscribe;
#[cfg(feature = "testing")]
mod trace;
mod wakeups;

#[cfg(feature = "testing")]
pub(crate) use self::trace::{Stage, TracedMessage};
pub use self::{consumer_info::ConsumerInfo, lease::EmbeddedLease, source::EmbeddedSource};

/// A message broker that needs no server: in a SQLite file of its own, or in memory.
///
/// It behaves like JetStream pull consumers, so that a handler that was developed on it runs there unchanged: each
/// (group, subject) is a durable consumer; a delivery is leased for the ack-wait and redelivered when it isn't
/// acknowledged by then, or when it was nakked and the delay is over; redeliveries come before new messages, and an
/// ordered subscription waits for them. Several programs may share a file; they share the work of a group. It is meant
/// for tests, first steps and services on one machine: SQLite has one writer at a time, and the file must not be on a
/// network file system.
///
/// A message that all consumers of its subject have settled is deleted a day after its last acknowledgement, or as
/// [`keep_for`](Self::keep_for) says. One that belongs to none, because none has its subject or all started
/// after it, is kept for future ones; one that a consumer hasn't settled is kept until it has, or until the consumer is
/// [removed](Self::remove_consumer).
///
/// A new value does nothing yet. The file and its tables are created at first use, so that is also when errors are
/// returned; the next call retries. Clones share the broker.
///
/// The file must not be that of the application's own database, and a SQLite database that isn't a broker's is refused.
/// It has an id that is part of every message's position, so positions of different files differ; a restored backup
/// keeps the id and reuses the sequence numbers that were lost.
///
/// ```
/// use std::time::Duration;
/// use inbox_runtime::{Broker, BrokerError, Embedded, Lease, Message, Source, Subscription};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BrokerError> {
/// let broker = Embedded::memory();
/// broker.publish(Message::new("order.created", "{}").id("evt-1")).await?;
///
/// let mut sources = broker.subscribe(vec![Subscription::new("billing", "order.*")]).await?;
/// let deliveries = sources[0].pull(10, Duration::from_secs(1)).await?;
/// for (delivery, lease) in &deliveries {
///     assert_eq!(delivery.subject, "order.created");
///     lease.ack().await?;
/// }
///
/// let billing = broker.consumer("billing", "order.*").await?.expect("it has subscribed");
/// assert_eq!(billing.acked, 1);
/// assert!(billing.is_idle());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embedded {
    shared: Arc<EmbeddedShared>,
}

impl Embedded {
    /// A broker in a file, which is created if it is missing (its folder is not). SQLite keeps two more files beside
    /// it, `…-wal` and `…-shm`.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        Self::at(Storage::file(path.as_ref()))
    }

    /// A broker in memory, which is dropped with its last clone, source and lease.
    #[must_use]
    pub fn memory() -> Self {
        Self::at(Storage::Memory)
    }

    /// The broker of a URL: `embedded:memory`, or `embedded:` and a file, optionally followed by `?keep=…`. The error
    /// says what to write.
    pub(crate) fn from_url(url: &str) -> Result<Self, String> {
        crate::url::no_login(url)?;
        let rest = url.strip_prefix("embedded:").unwrap_or(url);
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (storage, query) = rest.split_once('?').unwrap_or((rest, ""));
        let keep = retention::parse(query)?;
        let broker = match storage {
            "" => return Err("the broker's URL names no file; write embedded:broker.db or embedded:memory".to_owned()),
            "memory" => Self::memory(),
            file => Self::file(file),
        };
        if let Some(keep) = keep {
            broker.shared.retention.set(keep);
        }
        Ok(broker)
    }

    /// Sets how long a message is kept after its last acknowledgement, for this broker and its clones; a day by
    /// default. In a URL it is `embedded:broker.db?keep=1h`. Where several programs share a file the shortest time
    /// applies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use inbox_runtime::Embedded;
    ///
    /// let broker = Embedded::file("broker.db").keep_for(Duration::from_secs(3600));
    /// ```
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Self {
        self.shared.retention.set(time);
        self.shared.background.retention_changed.notify_one();
        self
    }

    /// Keeps every message, for this broker and its clones. In a URL it is `embedded:broker.db?keep=forever`.
    ///
    /// ```
    /// let broker = inbox_runtime::Embedded::file("broker.db").keep_forever();
    /// ```
    #[must_use]
    pub fn keep_forever(self) -> Self {
        self.shared.retention.set(Duration::MAX);
        self
    }

    fn at(storage: Storage) -> Self {
        Self {
            shared: Arc::new(EmbeddedShared::new(storage)),
        }
    }

    /// Publishes a message; returns when it is synced to the disk. Never deduplicates: the inbox does.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] when the subject is invalid for a publish; [`BrokerError::Invalid`] when the file is not a
    /// broker's; [`BrokerError::Unavailable`] when the file can't be written.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        let db = self.db().await?;
        let mut published = publish::publish(&self.shared, db, vec![publish::Row::of(message)?]).await?;
        Ok(published.swap_remove(0))
    }

    /// How far the durable consumer of `group` and `subject` (exactly as subscribed) is; `None` if there is none. Scans
    /// the waiting messages.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), inbox_runtime::BrokerError> {
    /// let broker = inbox_runtime::Embedded::memory();
    /// assert_eq!(broker.consumer("billing", "order.created").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when the file is not a broker's, [`BrokerError::Unavailable`] when it can't be read.
    pub async fn consumer(&self, group: &str, subject: &str) -> Result<Option<ConsumerInfo>, BrokerError> {
        Ok(consumer_info::consumers(&self.shared, Some((group, subject)))
            .await?
            .pop())
    }

    /// How far each durable consumer is, ordered by group and subject. Scans the waiting messages.
    ///
    /// # Errors
    ///
    /// As [`consumer`](Self::consumer).
    pub async fn consumers(&self) -> Result<Vec<ConsumerInfo>, BrokerError> {
        consumer_info::consumers(&self.shared, None).await
    }

    /// Removes the durable consumer of `group` and `subject` (exactly as subscribed), for a group that doesn't come
    /// back: it loses the messages that it hasn't settled, and they are deleted when no other consumer needs them.
    /// Returns whether it existed. A program that has it open reports an error from then on; a later subscription
    /// creates a new one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), inbox_runtime::BrokerError> {
    /// let broker = inbox_runtime::Embedded::memory();
    /// assert!(!broker.remove_consumer("billing", "order.created").await?, "nobody has subscribed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when the file is not a broker's, [`BrokerError::Unavailable`] when it can't be written.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the consumer is either removed or not.
    pub async fn remove_consumer(&self, group: &str, subject: &str) -> Result<bool, BrokerError> {
        subscribe::remove(&self.shared, group, subject).await
    }

    /// Not public API: advances the clock of this broker and its clones, for tests, and wakes the waiting pulls.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.shared.clock.shift(clock::millis(by));
        self.shared.wakeups.wake_all();
        self.shared.background.retention_changed.notify_one();
    }

    /// Not public API: puts the clock of this broker and its clones back, for tests, and wakes the waiting pulls.
    #[doc(hidden)]
    pub fn turn_clock_back(&self, by: Duration) {
        self.shared.clock.shift(-clock::millis(by));
        self.shared.wakeups.wake_all();
        self.shared.background.retention_changed.notify_one();
    }

    /// The database, with its background tasks.
    async fn db(&self) -> Result<&Db, BrokerError> {
        let db = self.shared.db().await?;
        background::ensure_running(&self.shared);
        Ok(db)
    }
}

/// For the test kit.
#[cfg(feature = "testing")]
impl Embedded {
    /// Stops the clock of this broker and its clones: only [`advance_clock`](Self::advance_clock) moves it.
    pub(crate) fn stop_clock(&self) {
        self.shared.clock.stop();
    }

    /// Every message of a consumer's subject, oldest first. One before its start counts as acknowledged.
    pub(crate) async fn trace(&self, group: &str, pattern: &str) -> Result<Vec<TracedMessage>, BrokerError> {
        trace::trace(&self.shared, group, pattern).await
    }

    /// Redelivers a delivered message at once, even an acknowledged one, as if its ack had been lost.
    pub(crate) async fn redeliver(
        &self,
        group: &str,
        pattern: &str,
        traced: &TracedMessage,
    ) -> Result<(), BrokerError> {
        trace::redeliver(&self.shared, group, pattern, traced).await
    }
}

impl Broker for Embedded {
    type Source = EmbeddedSource;

    async fn describe(&self) -> Result<String, BrokerError> {
        let mut connection = self.db().await?.reader().await?;
        let sqlite = sqlx::query_scalar("SELECT sqlite_version()")
            .fetch_one(&mut *connection)
            .await;
        let sqlite: String = connection.finish("read", sqlite)?;
        Ok(format!(
            "embedded {} ({}, SQLite {sqlite})",
            env!("CARGO_PKG_VERSION"),
            self.shared.storage
        ))
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        for subscription in &subscriptions {
            subject_rules::check_group(&subscription.group).map_err(BrokerError::Invalid)?;
            subject_rules::check_subject(&subscription.subject).map_err(BrokerError::Invalid)?;
        }
        self.db().await?;
        let opened = subscribe::subscribe(&self.shared, &subscriptions).await?;
        let source = |(subscription, opened): (Subscription, OpenedConsumer)| {
            opened.log(&subscription);
            let consumer = Consumer {
                id: opened.id,
                group: subscription.group,
                subject: subscription.subject,
                ordered: subscription.ordered,
                woken: Notify::new(),
                published: AtomicBool::new(false),
            };
            EmbeddedSource::new(Arc::clone(&self.shared), consumer, opened.ack_wait)
        };
        Ok(subscriptions.into_iter().zip(opened).map(source).collect())
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }

    /// All messages that are not refused are published in one transaction, or none is.
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
        match self.db().await {
            Ok(db) => publish::publish_all(&self.shared, db, messages).await,
            Err(error) => messages.iter().map(|_| Err(error.copied())).collect(),
        }
    }

    fn file(&self) -> Option<PathBuf> {
        self.shared.storage.path().map(Path::to_owned)
    }
}
