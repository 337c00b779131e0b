//! Apache Kafka, by librdkafka: one consumer for each group, offsets that are committed after the transaction.
//!
//! ```text
//!  poll thread ─ assigns, revokes ─▶ partitions ◀─ polls its queue, one record at a time ─ pull
//!                                     │      ▲
//!                        how far done │      │ ack, nak
//!                                     ▼      │
//!  commit thread ◀─── offsets, in batches    lease
//! ```
//!
//! librdkafka's callbacks and commits block, so each group has two threads of its own: one that polls, so that the group
//! is never left however long a handler takes, and one that commits. One more for all groups looks every few seconds how far they are. Each partition has a queue in librdkafka, which a pull
//! asks for the next record when the one before it is settled; librdkafka fetches ahead and stops when the queue is full.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::OnceCell, time::Instant};

use self::{
    clock::Clock,
    config::Settings,
    group::{Group, Line},
    publish::Producers,
    token::Token,
};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    config::{Given, Secret},
    delivery::Message,
    handler::StartPosition,
    names,
};

mod ack;
mod anew;
mod clock;
mod commit;
mod config;
mod connection;
mod consumer;
mod errors;
mod events;
mod faults;
mod group;
mod hand;
mod header_names;
mod log;
mod look;
mod memory;
mod offsets;
mod partition;
mod problems;
mod progress;
mod properties;
mod publish;
mod rebalance;
mod record;
mod source;
mod token;
mod topics;

pub use self::{ack::KafkaLease, source::KafkaSource, token::OauthToken};

/// How long subscribing waits for the groups to be joined.
const JOIN: Duration = Duration::from_secs(5);

/// Apache Kafka.
///
/// A handler's group is the consumer group, its subject the topic; `*` and `>` take every topic that fits, the ones that
/// are made later too, and never those that begin with two underscores. All handlers of a group share one consumer.
///
/// * Each partition is handled strictly in order, one message at a time; partitions don't wait for each other. So a
///   handler's `concurrency` is of use up to the number of partitions.
/// * A message that fails waits with its partition until it is tried again, or goes to the dead letters; the other
///   partitions go on. Health names the partition that waits, and stays ready.
/// * The offset of a partition is committed after its messages' transactions, in batches; what a crash leaves uncommitted is
///   delivered again and found in the inbox.
/// * Kafka doesn't count deliveries. The first message of a partition that comes to a program is taken for one that may
///   have been handled before.
/// * Without an id header a message's id is `topic:partition:offset`. A topic that is deleted and made anew begins at
///   offset 0 again; its records are handled from there, unless they have position and payload of one that was handled.
/// * A topic that doesn't exist and brokers that don't answer are no errors: health says so, and the program goes on when
///   they are there. Topics and partitions that are added are found within ten seconds.
///
/// Making one does nothing yet. Clones share the producer.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use inbox_runtime::{Kafka, Message};
///
/// let kafka = Kafka::new("one.example:9092,two.example:9092").property("compression.type", "zstd");
/// let published = kafka.publish(Message::new("order.created", "{}").id("evt-1").key("customer-7")).await?;
/// println!("{}", published.position); // order.created:3:41
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Kafka {
    settings: Settings,
    shared: Arc<Shared>,
}

/// What the clones, sources and leases share.
#[derive(Debug, Default)]
struct Shared {
    clock: Clock,
    producers: Producers,
    groups: Mutex<Vec<Weak<Group>>>,
    topics_made: OnceCell<()>,
    /// What is wrong with the settings, which don't change any more.
    checked: OnceLock<Result<(), Vec<String>>>,
    /// The thread that looks at the groups was begun.
    looks: OnceLock<()>,
}

impl Shared {
    /// The groups that there are.
    fn groups(&self) -> Vec<Arc<Group>> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes the topics that are wanted, once.
    async fn make_topics(&self, settings: &Settings) -> Result<(), BrokerError> {
        let made = self.topics_made.get_or_try_init(|| topics::make(settings));
        made.await.copied()
    }
}

impl Kafka {
    /// Brokers to begin with, as in `one:9092,two:9092`, or as in `INBOX_BROKER_URL`: `kafka://one:9092,two:9092`. One that
    /// answers is enough. Without a port it is 9092.
    ///
    /// A list that can't be read is an error of the first use.
    #[must_use]
    pub fn new(brokers: impl AsRef<str>) -> Self {
        let brokers = brokers.as_ref();
        let rest = brokers.strip_prefix("kafka:").unwrap_or(brokers);
        Self::with(Settings::from_url(rest.strip_prefix("//").unwrap_or(rest)))
    }

    /// The broker of a URL, of which `rest` stands behind `kafka:`, and which was found at `place`, with librdkafka's properties.
    /// The errors say what to write instead, and where.
    pub(crate) fn from_url<'a>(
        rest: &str,
        place: &str,
        properties: impl IntoIterator<Item = (&'a String, &'a Given<Secret>)>,
    ) -> Result<Self, Vec<String>> {
        let mut settings = Settings::from_url(rest);
        settings.place_problems(place);
        for (name, given) in properties {
            settings.set_given(name, given);
        }
        let kafka = Self::with(settings);
        kafka.problems().map(|()| kafka.clone())
    }

    /// Everything that is wrong with the settings, found out once.
    fn problems(&self) -> Result<(), Vec<String>> {
        self.shared.checked.get_or_init(|| self.settings.check()).clone()
    }

    fn check(&self) -> Result<(), BrokerError> {
        self.problems()
            .map_err(|problems| BrokerError::Invalid(problems.join("; ")))
    }

    fn with(settings: Settings) -> Self {
        Self {
            settings,
            shared: Arc::default(),
        }
    }

    /// Sets a property of librdkafka, as `INBOX_KAFKA_…` does: `INBOX_KAFKA_SESSION_TIMEOUT_MS` is `session.timeout.ms`.
    /// Where a property is not set, or to nothing, librdkafka's default holds.
    ///
    /// Those that would break the guarantee (`enable.auto.commit`, for one) and those that librdkafka doesn't know are an
    /// error of the first use.
    #[must_use]
    pub fn property(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.settings.set(name.as_ref(), value.as_ref());
        self.shared = Arc::default();
        self
    }

    /// Puts a prefix before every topic and every group, as `?prefix=staging.` does in the URL: so several environments
    /// can share brokers. Handlers see subjects without it.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.settings.set_prefix(prefix.as_ref());
        self.shared = Arc::default();
        self
    }

    /// Bounds what a consumer keeps of what it has fetched ahead, in bytes: 64 MiB unless it is set, and at least 1 MiB, for each
    /// group of the program. As `?memory=64MB` does in the URL.
    ///
    /// It is divided among all partitions of the group's topics, of which each keeps at most 8 MiB in its queue, and 1 MiB of
    /// a fetch on top of that. Below 64 KiB for a partition it isn't divided further, and a record that is larger than its share is delivered all
    /// the same. `queued.max.messages.kbytes`, `fetch.message.max.bytes` and `fetch.max.bytes` have precedence where they are set.
    ///
    /// ```
    /// let kafka = inbox_runtime::Kafka::new("one.example:9092").memory(16 << 20);
    /// ```
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.settings.set_memory(bytes);
        self.shared = Arc::default();
        self
    }

    /// Makes the topic of a subject with so many partitions, as many replicas as the brokers' default, and their other
    /// defaults, when this is first used, if it isn't there. One that is there stays as it is.
    #[must_use]
    pub fn create_topic(mut self, subject: impl Into<String>, partitions: u16) -> Self {
        self.settings.topics.push((subject.into(), i32::from(partitions)));
        self.shared = Arc::default();
        self
    }

    /// Lets a function make the tokens for SASL OAUTHBEARER, which needs the feature `kafka-ssl`. It is called when a client
    /// connects first, and again after 80 % of a token's lifetime; each client has a token of its own. It may take ten seconds. An
    /// error is shown in health and in the error of [`publish`](Self::publish), and ten seconds later it is called again.
    ///
    /// It sets `sasl.mechanism` to `OAUTHBEARER` and, unless it is set, `security.protocol` to `sasl_ssl`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use inbox_runtime::{Kafka, kafka::OauthToken};
    ///
    /// # async fn ask_the_server() -> Result<(String, u64), std::io::Error> { unimplemented!() }
    /// let kafka = Kafka::new("one.example:9092").oauth_token(|| async {
    ///     let (token, seconds) = ask_the_server().await?;
    ///     Ok::<_, std::io::Error>(OauthToken::expires_in(token, "billing", Duration::from_secs(seconds)))
    /// });
    /// ```
    #[must_use]
    pub fn oauth_token<F, Fut, E>(mut self, token: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<OauthToken, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.settings.token = Some(Token::new(token));
        self.shared = Arc::default();
        self
    }

    /// Publishes a message; returns when every replica that must have it does. The key, if there is one, decides on the
    /// partition.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] when the brokers don't take this message and never will: it is too large, its subject is none
    /// to publish to, the right to write to the topic is missing. [`BrokerError::NotNow`] when its topic can't have it now: it
    /// isn't there, which is known after 10 s (`topic.metadata.propagation.max.ms`), a partition has no leader, too few replicas are in
    /// sync. [`BrokerError::Unavailable`] when no broker answers within 30 s (`message.timeout.ms`), with the cause.
    /// [`BrokerError::Invalid`] when a setting can't be used.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        names::check_publish_subject(&message.subject)
            .map_err(|message| BrokerError::Refused { message, source: None })?;
        self.check()?;
        self.shared.make_topics(&self.settings).await?;
        publish::publish(&self.shared.producers, &self.settings, message).await
    }

    /// Not public API: puts the clock of what waits forward, for tests.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.shared.clock.advance(by);
        for group in self.shared.groups() {
            group.wake_all();
        }
    }

    /// Not public API: waits until every offset of what was acknowledged in a group is committed, and tells how many
    /// records of it are out or wait. For tests.
    #[doc(hidden)]
    pub async fn in_hand(&self, group: &str) -> usize {
        let id = format!("{}{group}", self.settings.prefix);
        let mut in_hand = 0;
        for group in self.shared.groups().into_iter().filter(|group| group.id == id) {
            group.rest().await;
            in_hand += group.in_hand();
        }
        in_hand
    }

    /// Makes the consumer of a group with its two threads.
    fn start(&self, id: &str, lines: Vec<Line>) -> Result<Arc<Group>, BrokerError> {
        let failed = |error: &dyn std::fmt::Display| {
            BrokerError::Invalid(format!("the consumer of the group `{id}` can't be made: {error}"))
        };
        let group = Arc::new(Group::new(
            id.to_owned(),
            self.settings.prefix.clone(),
            lines,
            self.shared.clone(),
        ));
        group.wait(consumer::JOINING, "it has not been joined yet");
        let (polled, committed, settings) = (group.clone(), group.clone(), self.settings.on_this_runtime());
        let thread = |name: &str| std::thread::Builder::new().name(format!("kafka-{name}"));
        thread("commit")
            .spawn(move || commit::run(&committed))
            .map_err(|error| failed(&error))?;
        thread("poll")
            .spawn(move || consumer::run(&polled, &settings))
            .map_err(|error| failed(&error))?;
        if self.shared.looks.set(()).is_ok() {
            look::begin(&self.shared).map_err(|error| failed(&error))?;
        }
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(&group));
        Ok(group)
    }
}

impl Broker for Kafka {
    type Source = KafkaSource;

    /// Asks nobody, so that it also works while the brokers can't be reached.
    async fn describe(&self) -> Result<String, BrokerError> {
        self.check()?;
        let (_, version) = rdkafka::util::get_rdkafka_version();
        Ok(format!("Kafka at {} (librdkafka {version})", self.settings.brokers))
    }

    /// Waits until the groups are joined, but no longer than five seconds.
    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        self.check()?;
        if let Err(error) = self.shared.make_topics(&self.settings).await {
            tracing::warn!(%error, "the topics could not be made");
        }
        header_names::check(cfg!(panic = "abort")).map_err(BrokerError::Invalid)?;
        header_names::shield_hook();
        let mut lines: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        let mut places = Vec::with_capacity(subscriptions.len());
        for subscription in &subscriptions {
            names::check_group(&subscription.group).map_err(BrokerError::Invalid)?;
            names::check_subject(&subscription.subject).map_err(BrokerError::Invalid)?;
            if let StartPosition::Sequence(sequence) = subscription.start {
                return Err(BrokerError::Invalid(format!(
                    "`start = \"sequence:{sequence}\"` at the handler of `{}`: Kafka numbers the records of each partition by \
                     itself; write `start = \"first\"`, `start = \"new\"`, or a time as in `start = \"2026-01-31T00:00:00Z\"`",
                    subscription.subject
                )));
            }
            let id = format!("{}{}", self.settings.prefix, subscription.group);
            let lines = lines.entry(id.clone()).or_default();
            places.push((id, lines.len()));
            lines.push(Line::new(subscription));
        }
        let mut groups = BTreeMap::new();
        for (id, lines) in lines {
            let group = self.start(&id, lines)?;
            groups.insert(id, group);
        }
        let sources = places
            .iter()
            .map(|(id, line)| KafkaSource::new(groups[id].clone(), *line))
            .collect();
        let deadline = Instant::now() + JOIN;
        for group in groups.values() {
            let mut joined = group.joined.subscribe();
            if tokio::time::timeout_at(deadline, joined.wait_for(|joined| *joined))
                .await
                .is_err()
            {
                tracing::warn!(
                    group = group.id,
                    "the group is not joined yet; it is as soon as Kafka answers"
                );
            }
        }
        Ok(sources)
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }
}
