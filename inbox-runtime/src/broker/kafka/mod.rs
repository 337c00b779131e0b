//! Apache Kafka, by librdkafka: one consumer per group, whose offsets are committed after the transaction.
//!
//! ```text
//!  poll thread ─ assigns, revokes ─▶ partitions ◀─ polls its queue, one record at a time ─ source
//!                                     │      ▲
//!                            progress │      │ ack, nak
//!                                     ▼      │
//!  commit thread ◀─── offsets, in batches    lease
//! ```
//!
//! librdkafka's callbacks and commits block, so each group has two threads: one polls, so that the group keeps its
//! membership however long a handler takes, and one commits. A third one polls the metadata of all groups. Each
//! partition has a queue in librdkafka, from which a source takes the next record when the one before it is settled;
//! librdkafka prefetches, up to a limit.
//!
//! The modules. Each uses only those to its right and those below:
//!
//! ```text
//!  Kafka (this file)
//!  start                                                        a group with its threads
//!  source · lease                                               pull, and settle
//!  poll_thread · callbacks · metadata_poll · groups             one thread per group, one for all groups
//!  rebalance · start_offsets · commit_thread · recreated
//!  group · partition · slot · progress                          state, behind one lock
//!  offsets · client                                             librdkafka's consumer
//!  publish_all
//!  group_health · subscriptions · publish · create_topics · prefetch_limit
//!  client_events · options · log · reachability                 what a client is given, and what it reports
//!  oauth · partition_errors · errors · properties
//!  record · header_names · topic_names · topic_partition · backoff_clock
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::OnceCell, time::Instant};

use inbox_rules::subject_rules;

use self::{
    backoff_clock::BackoffClock, group::Group, groups::Groups, oauth::TokenFunction, options::KafkaOptions,
    publish::ProducerCell, publish_all::IdleProducers, subscriptions::TopicSubscription,
};
use crate::{
    broker::{Broker, BrokerError, Published, Subscription},
    config::{Given, Secret},
    delivery::Message,
    handler::StartPosition,
};

mod backoff_clock;
mod callbacks;
mod client;
mod client_events;
mod commit_thread;
mod create_topics;
mod errors;
mod group;
mod group_health;
mod groups;
mod header_names;
mod lease;
mod log;
mod metadata_poll;
mod oauth;
mod offsets;
mod options;
mod partition;
mod partition_errors;
mod poll_thread;
mod prefetch_limit;
mod progress;
mod properties;
mod publish;
mod publish_all;
mod reachability;
mod rebalance;
mod record;
mod recreated;
mod slot;
mod source;
mod start;
mod start_offsets;
mod subscriptions;
mod topic_names;
mod topic_partition;

pub use self::{lease::KafkaLease, oauth::OauthToken, source::KafkaSource};

/// How long subscribing waits for the groups to be joined.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Apache Kafka.
///
/// A handler's group is the consumer group, its subject the topic; `*` and `>` match topics that exist and those
/// created later, but never those that begin with two underscores. All handlers of a group share one consumer.
///
/// * Each partition is processed strictly in order, one message at a time; partitions don't wait for each other. So a
///   handler's `concurrency` is of use up to the number of partitions.
/// * A message that fails keeps its partition waiting until it is redelivered or dead-lettered; the other partitions go
///   on. Health names the partition, and stays ready.
/// * The offset of a partition is committed after its messages' transactions, in batches; what a crash leaves
///   uncommitted is redelivered and recognised as duplicate.
/// * Kafka doesn't count deliveries. The first message of a partition that a program receives counts as a redelivery.
/// * Without an id header a message's id is `topic:partition:offset`. A topic that is deleted and recreated begins at
///   offset 0 again; its records are processed, unless they have position and payload of one that was processed.
/// * A missing topic and unreachable brokers are no errors: health shows them, and the program goes on when they are
///   there. New topics and partitions are found within ten seconds.
///
/// Creating a `Kafka` connects to nothing. Clones share the producer.
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
    options: KafkaOptions,
    shared: Arc<KafkaShared>,
}

/// What clones share.
#[derive(Debug, Default)]
struct KafkaShared {
    clock: Arc<BackoffClock>,
    producer: ProducerCell,
    /// Of `publish_all`.
    ordered_producers: IdleProducers,
    groups: Arc<Groups>,
    topics_created: OnceCell<()>,
    /// The problems of the options, which don't change any more.
    checked: OnceLock<Result<(), Vec<String>>>,
}

impl Kafka {
    /// The bootstrap brokers, as in `one:9092,two:9092`, or as in `INBOX_BROKER_URL`: `kafka://one:9092,two:9092`. One
    /// that answers is enough. The default port is 9092.
    ///
    /// An invalid list is an error of the first use.
    #[must_use]
    pub fn new(brokers: impl AsRef<str>) -> Self {
        let brokers = brokers.as_ref();
        let rest = brokers.strip_prefix("kafka:").unwrap_or(brokers);
        Self::with(KafkaOptions::from_url(rest.strip_prefix("//").unwrap_or(rest)))
    }

    /// The broker of a URL, of which `rest` follows `kafka:`, set at `place`, with librdkafka's properties. The errors
    /// say what to write instead, and where.
    pub(crate) fn from_url<'a>(
        rest: &str,
        place: &str,
        properties: impl IntoIterator<Item = (&'a String, &'a Given<Secret>)>,
    ) -> Result<Self, Vec<String>> {
        let mut options = KafkaOptions::from_url(rest);
        options.place_problems(place);
        for (name, given) in properties {
            options.set_given(name, given);
        }
        let kafka = Self::with(options);
        kafka.problems().map(|()| kafka.clone())
    }

    /// The problems of the options, determined once.
    fn problems(&self) -> Result<(), Vec<String>> {
        self.shared.checked.get_or_init(|| self.options.check()).clone()
    }

    fn check(&self) -> Result<(), BrokerError> {
        self.problems()
            .map_err(|problems| BrokerError::Invalid(problems.join("; ")))
    }

    fn with(options: KafkaOptions) -> Self {
        Self {
            options,
            shared: Arc::default(),
        }
    }

    /// Changes the options, and shares nothing with clones any more.
    fn set(mut self, change: impl FnOnce(&mut KafkaOptions)) -> Self {
        change(&mut self.options);
        self.shared = Arc::default();
        self
    }

    /// Sets a property of librdkafka, as `INBOX_KAFKA_…` does: `INBOX_KAFKA_SESSION_TIMEOUT_MS` is
    /// `session.timeout.ms`. An empty value restores librdkafka's default.
    ///
    /// Properties that would break the guarantee (such as `enable.auto.commit`) and unknown ones are an error of the
    /// first use.
    #[must_use]
    pub fn property(self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.set(|options| options.set(name.as_ref(), value.as_ref()))
    }

    /// Prefixes every topic and every group, as `?prefix=staging.` does in the URL, so that several environments can
    /// share brokers. Handlers see subjects without it.
    #[must_use]
    pub fn prefix(self, prefix: impl AsRef<str>) -> Self {
        self.set(|options| options.set_prefix(prefix.as_ref()))
    }

    /// Limits the memory of prefetched records, in bytes, per group of the program: 64 MiB by default, at least 1 MiB.
    /// As `?memory=64MB` does in the URL.
    ///
    /// It is divided among all partitions of the group's topics; each keeps at most 8 MiB in its queue, and 1 MiB of a
    /// fetch on top of that, and at least 64 KiB in all. A record that is larger than its partition's share is
    /// delivered all the same. `queued.max.messages.kbytes`, `fetch.message.max.bytes` and `fetch.max.bytes` have
    /// precedence where they are set.
    ///
    /// ```
    /// let kafka = inbox_runtime::Kafka::new("one.example:9092").memory(16 << 20);
    /// ```
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        self.set(|options| options.set_memory(bytes))
    }

    /// Creates the topic of a subject on first use, if it doesn't exist, with that many partitions and the brokers'
    /// defaults for replicas and settings. An existing topic stays as it is.
    #[must_use]
    pub fn create_topic(self, subject: impl Into<String>, partitions: u16) -> Self {
        self.set(|options| options.topics.push((subject.into(), i32::from(partitions))))
    }

    /// Sets the function that returns tokens for SASL OAUTHBEARER, which needs the feature `kafka-ssl`. It is called
    /// when a client first connects, and again after 80 % of a token's lifetime; each client has a token of its own. It
    /// may take ten seconds. An error is shown in health and in the error of [`publish`](Self::publish), and the
    /// function is called again ten seconds later.
    ///
    /// Sets `sasl.mechanism` to `OAUTHBEARER` and, unless it is set, `security.protocol` to `sasl_ssl`.
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
    pub fn oauth_token<F, Fut, E>(self, token: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<OauthToken, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.set(|options| options.token = Some(TokenFunction::new(token)))
    }

    /// Publishes a message; returns when all in-sync replicas have it. The key, if there is one, decides on the
    /// partition.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] when the brokers don't accept this message and never will: it is too large, its subject
    /// is not one to publish to, the permission to write to the topic is missing. [`BrokerError::NotNow`] when its
    /// topic can't accept it now: it doesn't exist, which is known after 10 s (`topic.metadata.propagation.max.ms`), a
    /// partition has no leader, too few replicas are in sync. [`BrokerError::Unavailable`] when no broker answers
    /// within 30 s (`message.timeout.ms`), with the cause. [`BrokerError::Invalid`] when an option is invalid.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the message is either published or not.
    pub async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        publish::check(&message)?;
        self.check()?;
        self.ensure_topics().await?;
        publish::publish(&self.shared.producer, &self.options, &message).await
    }

    /// Creates the missing topics, once.
    async fn ensure_topics(&self) -> Result<(), BrokerError> {
        let create = || create_topics::create_topics(&self.options);
        self.shared.topics_created.get_or_try_init(create).await.copied()
    }

    /// Not public API: advances the clock of redelivery delays, for tests.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.shared.clock.advance(by);
        for group in self.shared.groups.running() {
            group.subscriptions.wake_all();
        }
    }

    /// Not public API: waits until all acknowledged offsets of a group are committed, and returns how many of its
    /// records are in flight or back off. For tests.
    #[doc(hidden)]
    pub async fn unsettled(&self, group: &str) -> usize {
        let id = self.group_id(group);
        let mut unsettled = 0;
        for group in self.shared.groups.running() {
            if group.id() == id {
                group.wait_committed().await;
                unsettled += group.unsettled();
            }
        }
        unsettled
    }

    /// Kafka's `group.id` of a handler's group.
    fn group_id(&self, group: &str) -> String {
        format!("{}{group}", self.options.prefix)
    }
}

impl Broker for Kafka {
    type Source = KafkaSource;

    /// Asks no broker, so that it works while none can be reached.
    async fn describe(&self) -> Result<String, BrokerError> {
        self.check()?;
        let (_, version) = rdkafka::util::get_rdkafka_version();
        Ok(format!("Kafka at {} (librdkafka {version})", self.options.brokers))
    }

    /// Waits until the groups are joined, but no longer than five seconds.
    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        self.check()?;
        if let Err(error) = self.ensure_topics().await {
            tracing::warn!(%error, "the topics could not be created");
        }
        header_names::check(cfg!(panic = "abort")).map_err(BrokerError::Invalid)?;
        header_names::shield_hook();
        let mut by_group: BTreeMap<String, Vec<TopicSubscription>> = BTreeMap::new();
        let mut places = Vec::with_capacity(subscriptions.len());
        for subscription in &subscriptions {
            check_subscription(subscription)?;
            let id = self.group_id(&subscription.group);
            let in_group = by_group.entry(id.clone()).or_default();
            places.push((id, in_group.len()));
            in_group.push(TopicSubscription::new(subscription));
        }
        let mut groups = BTreeMap::new();
        for (id, subscriptions) in by_group {
            let KafkaShared { clock, groups: all, .. } = &*self.shared;
            let group = start::start_group(all, clock, &self.options, &id, subscriptions)?;
            groups.insert(id, group);
        }
        let sources = places
            .iter()
            .map(|(id, index)| KafkaSource::new(groups[id].clone(), *index))
            .collect();
        wait_joined(groups.values()).await;
        Ok(sources)
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        Self::publish(self, message).await
    }

    /// In order are the messages of a topic that have the same key, as long as its number of partitions stays the same. Those
    /// without a key go to any partition, so they are in order only on a topic with one.
    ///
    /// They are queued together, on a producer that is used for nothing else meanwhile; the brokers have one request at a time
    /// each. The call ends `message.timeout.ms` (30 s by default) after the last confirmation at the latest. Messages that were
    /// sent together with one that the brokers refuse are sent once more, each by itself.
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Result<Published, BrokerError>> {
        let ready = match self.check() {
            Ok(()) => self.ensure_topics().await,
            Err(error) => Err(error),
        };
        match ready {
            Ok(()) => publish_all::publish_all(&self.shared.ordered_producers, &self.options, &messages).await,
            Err(error) => messages.iter().map(|_| Err(error.copied())).collect(),
        }
    }

    /// `message.max.bytes`. Key and headers count there, too.
    fn max_payload(&self) -> Option<usize> {
        Some(self.options.max_message_bytes())
    }
}

fn check_subscription(subscription: &Subscription) -> Result<(), BrokerError> {
    subject_rules::check_group(&subscription.group).map_err(BrokerError::Invalid)?;
    subject_rules::check_subject(&subscription.subject).map_err(BrokerError::Invalid)?;
    let StartPosition::Sequence(sequence) = subscription.start else {
        return Ok(());
    };
    Err(BrokerError::Invalid(format!(
        "`start = \"sequence:{sequence}\"` at the handler of `{}`: in Kafka each partition has its own offsets; write \
         `start = \"first\"`, `start = \"new\"`, or a time as in `start = \"2026-01-31T00:00:00Z\"`",
        subscription.subject
    )))
}

async fn wait_joined(groups: impl Iterator<Item = &Arc<Group>>) {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    for group in groups {
        let mut joined = group.joined.subscribe();
        let joined = tokio::time::timeout_at(deadline, joined.wait_for(|joined| *joined)).await;
        if joined.is_err() {
            tracing::warn!(
                group = group.id(),
                "the group is not joined yet; it will be when Kafka answers"
            );
        }
    }
}
