//! The broker in the program itself: durable in a SQLite file of its own, or in memory.
//!
//! ```text
//!  publish ─▶ messages ─▶ waiting ─ take ─▶ pending ─ ack ─▶ gone
//!                                            │  ▲
//!                                 nak, lease │  │ take
//!                                   runs out ▼  │
//!                                            due
//! ```
//!
//! A message that every durable has settled is deleted a while later; see `sweep`.
//!
//! A consumer's position is the last message that it looked at; what it took and hasn't settled are its pending rows.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Notify, OnceCell};

use self::{
    acks::Acks, clock::Clock, config::Place, db::Db, durable::Opened, keep::Keep, take::Durable, upkeep::Upkeep,
    wake::Wakes,
};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    delivery::Message,
    names,
};

mod absent;
mod ack;
mod acks;
mod clock;
mod config;
mod db;
mod durable;
mod info;
mod keep;
mod lag;
mod link;
mod source;
mod sweep;
mod take;
#[cfg(feature = "testing")]
mod trace;
mod upkeep;
mod wake;

#[cfg(feature = "testing")]
pub(crate) use self::trace::{Stage, Traced};
pub use self::{ack::EmbeddedLease, info::ConsumerInfo, source::EmbeddedSource};

/// A message broker that needs no server: it lives in a SQLite file of its own, or in memory.
///
/// It behaves like a JetStream pull consumer, so that a handler that was developed on it moves unchanged: each (group,
/// subject) is a durable consumer; a delivery is leased for the ack-wait and comes again when it isn't acknowledged by
/// then, or when it is given back and its delay is over; what failed comes before what is new, and an ordered subscription
/// waits for it. Several programs may share
/// a file; they share the work of a group. It is meant for tests, first steps and services on one machine: SQLite has one
/// writer at a time, and the file must not lie on a network file system.
///
/// A message that every group has settled whose it is, is deleted a day after its last acknowledgement, or as
/// [`keep_for`](Self::keep_for) says. One that was never any group's is kept, for a group may come for it; one that a group
/// hasn't settled is kept until it has, or until the group's durable is [removed](Self::remove_consumer).
///
/// Making one does nothing yet. The file and its tables are made when the broker is first used, so that is also when
/// errors show; a failed opening is tried again by the next call. Clones share the broker.
///
/// The file must not be that of the application's own database, and a SQLite database that isn't a broker's is refused.
/// It carries an id that is part of every message's position, so positions of different files differ; a restored backup
/// keeps the id and numbers its next messages as the lost ones were.
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
    shared: Arc<Shared>,
}

/// What the clones, sources and leases of a broker share.
#[derive(Debug)]
struct Shared {
    place: Place,
    clock: Clock,
    keep: Keep,
    /// The waiting pulls of this process.
    wakes: Wakes,
    /// The acknowledgements of this process that wait to be written.
    acks: Acks,
    upkeep: Upkeep,
    db: OnceCell<Db>,
}

impl Shared {
    async fn db(&self) -> Result<&Db, BrokerError> {
        self.db.get_or_try_init(|| Db::open(&self.place)).await
    }
}

impl Embedded {
    /// A broker in a file, which is made if it is missing (its folder is not). SQLite keeps two more files beside it,
    /// `…-wal` and `…-shm`.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        Self::at(Place::file(path.as_ref()))
    }

    /// A broker in memory, which is gone with its last clone, source and lease.
    #[must_use]
    pub fn memory() -> Self {
        Self::at(Place::Memory)
    }

    /// The broker of a URL: `embedded:memory`, or `embedded:` and a file, and `?keep=…` behind it. The error says what to write.
    pub(crate) fn from_url(url: &str) -> Result<Self, String> {
        crate::url::no_login(url)?;
        let rest = url.strip_prefix("embedded:").unwrap_or(url);
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let keep = keep::parse(query)?;
        let broker = match place {
            "" => return Err("the broker's URL names no file; write embedded:broker.db or embedded:memory".to_owned()),
            "memory" => Self::memory(),
            file => Self::file(file),
        };
        if let Some(keep) = keep {
            broker.shared.keep.set(keep);
        }
        Ok(broker)
    }

    /// Sets for how long a message is kept after its last acknowledgement, for this broker and its clones; a day by default.
    /// In a URL it is `embedded:broker.db?keep=1h`. Where several programs share a file the shortest time holds.
    ///
    /// ```
    /// use std::time::Duration;
    /// use inbox_runtime::Embedded;
    ///
    /// let broker = Embedded::file("broker.db").keep_for(Duration::from_secs(3600));
    /// ```
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Self {
        self.shared.keep.set(time);
        self.shared.upkeep.retain_now();
        self
    }

    /// Keeps every message, for this broker and its clones. In a URL it is `embedded:broker.db?keep=forever`.
    ///
    /// ```
    /// let broker = inbox_runtime::Embedded::file("broker.db").keep_forever();
    /// ```
    #[must_use]
    pub fn keep_forever(self) -> Self {
        self.shared.keep.set(Duration::MAX);
        self
    }

    fn at(place: Place) -> Self {
        Self {
            shared: Arc::new(Shared {
                place,
                clock: Clock::default(),
                keep: Keep::default(),
                wakes: Wakes::default(),
                acks: Acks::default(),
                upkeep: Upkeep::default(),
                db: OnceCell::new(),
            }),
        }
    }

    /// Publishes a message; returns when it is on the disk. Never takes a message for a duplicate: that is the inbox's
    /// business.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Invalid`] when the subject is none to publish to, or the file is not a broker's;
    /// [`BrokerError::Unavailable`] when the file can't be written.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        names::check_publish_subject(&message.subject).map_err(BrokerError::Invalid)?;
        let headers = serde_json::to_vec(&message.headers)
            .map_err(|error| BrokerError::Invalid(format!("the headers can't be stored: {error}")))?;
        let db = self.db().await?;
        let mut writing = db.durable().await?;
        let subject = message.subject;
        let inserted =
            sqlx::query("INSERT INTO messages (subject, published_at, headers, payload) VALUES (?, ?, ?, ?)")
                .bind(&subject)
                .bind(self.shared.clock.now())
                .bind(headers)
                .bind(message.payload.as_deref())
                .execute(&mut *writing)
                .await;
        let inserted = writing.done("publish to", inserted)?;
        // Not confirmed, if it went into a file without a name.
        db.check()?;
        self.shared.wakes.published(&subject);
        Ok(Published::new(take::position(
            &db.instance,
            inserted.last_insert_rowid(),
        )))
    }

    /// How far the durable consumer of `group` and `subject` (exactly as it subscribed) has come; `None` if nobody has
    /// subscribed yet. Counts by reading the messages that wait.
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
        Ok(info::consumers(&self.shared, Some((group, subject))).await?.pop())
    }

    /// How far each durable consumer has come, in the order of groups and subjects. Counts by reading the messages that
    /// wait.
    ///
    /// # Errors
    ///
    /// As [`consumer`](Self::consumer).
    pub async fn consumers(&self) -> Result<Vec<ConsumerInfo>, BrokerError> {
        info::consumers(&self.shared, None).await
    }

    /// Removes the durable consumer of `group` and `subject` (exactly as it subscribed), for a group that isn't to come back:
    /// the messages that it hasn't settled are lost to it, and are deleted when nobody else waits for them. Returns whether it
    /// was there. A program that has it open reports an error from then on; a later subscription makes a new one.
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
    /// Dropped half-way, the durable is either removed or not.
    pub async fn remove_consumer(&self, group: &str, subject: &str) -> Result<bool, BrokerError> {
        durable::remove(&self.shared, group, subject).await
    }

    /// Not public API: puts the clock of this broker and its clones forward, for tests, and wakes the waiting pulls.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.shared.clock.shift(clock::millis(by));
        self.shared.wakes.all();
        self.shared.upkeep.retain_now();
    }

    /// Not public API: puts the clock of this broker and its clones back, for tests, and wakes the waiting pulls.
    #[doc(hidden)]
    pub fn turn_clock_back(&self, by: Duration) {
        self.shared.clock.shift(-clock::millis(by));
        self.shared.wakes.all();
        self.shared.upkeep.retain_now();
    }

    /// The database, with what works in the background on it.
    async fn db(&self) -> Result<&Db, BrokerError> {
        let db = self.shared.db().await?;
        upkeep::keep_up(&self.shared);
        Ok(db)
    }
}

impl Broker for Embedded {
    type Source = EmbeddedSource;

    async fn describe(&self) -> Result<String, BrokerError> {
        let mut reading = self.db().await?.reading().await?;
        let sqlite = sqlx::query_scalar("SELECT sqlite_version()")
            .fetch_one(&mut *reading)
            .await;
        let sqlite: String = reading.done("read", sqlite)?;
        Ok(format!(
            "embedded {} ({}, SQLite {sqlite})",
            env!("CARGO_PKG_VERSION"),
            self.shared.place
        ))
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        for subscription in &subscriptions {
            names::check_group(&subscription.group).map_err(BrokerError::Invalid)?;
            names::check_subject(&subscription.subject).map_err(BrokerError::Invalid)?;
        }
        self.db().await?;
        let opened = durable::open(&self.shared, &subscriptions).await?;
        let source = |(subscription, opened): (Subscription, Opened)| {
            opened.log(&subscription);
            let durable = Durable {
                id: opened.id,
                group: subscription.group,
                subject: subscription.subject,
                ordered: subscription.ordered,
                woken: Notify::new(),
            };
            EmbeddedSource::new(Arc::clone(&self.shared), durable, opened.ack_wait)
        };
        Ok(subscriptions.into_iter().zip(opened).map(source).collect())
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }

    fn file(&self) -> Option<PathBuf> {
        self.shared.place.path().map(Path::to_owned)
    }
}
