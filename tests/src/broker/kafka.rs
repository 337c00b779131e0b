//! Apache Kafka for tests: topics and groups of its own for each test, on the server that they share.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{Kafka, Message};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    groups::GroupInfo,
    message::{Header, OwnedHeaders},
    metadata::Metadata,
    producer::{FutureProducer, FutureRecord, Producer as _},
    util::Timeout,
};

use super::{Settled, TestBroker};
use crate::servers::kafka::Shared;

/// What the tests set, so that a member that is gone and a topic that is new are noticed quickly.
const PROPERTIES: [(&str, &str); 4] = [
    ("session.timeout.ms", "1500"),
    ("heartbeat.interval.ms", "200"),
    ("topic.metadata.refresh.interval.ms", "300"),
    ("fetch.wait.max.ms", "100"),
];
/// The partitions of a topic whose messages are handled several at a time.
const PARTITIONS: i32 = 8;
/// How long one question may take.
const ASK: Duration = Duration::from_secs(10);

/// The topics and groups of one test.
#[derive(Clone)]
pub struct KafkaCluster {
    brokers: String,
    prefix: String,
    kafka: Kafka,
    /// Each topic with its partitions, and the partition of the next message where they take turns.
    topics: Arc<Mutex<BTreeMap<String, Turns>>>,
    eyes: Arc<Eyes>,
}

#[derive(Clone, Copy, Default)]
struct Turns {
    partitions: i32,
    next: i32,
}

/// The test's own look at a server.
struct Eyes {
    producer: FutureProducer,
    admin: AdminClient<DefaultClientContext>,
    /// Who may ask for a group's offsets: a consumer that never joins it.
    consumers: Mutex<HashMap<String, Arc<BaseConsumer>>>,
}

impl KafkaCluster {
    /// A prefix of its own on the server with that address.
    #[must_use]
    pub fn on(brokers: &str) -> Self {
        Self::with(brokers, |kafka| kafka)
    }

    /// The same, with a broker that `set` has changed.
    #[must_use]
    pub fn with(brokers: &str, set: impl FnOnce(Kafka) -> Kafka) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("t{}-{}-{number}.", std::process::id(), fastrand::u16(..));
        let kafka = PROPERTIES
            .iter()
            .fold(Kafka::new(brokers), |kafka, (name, value)| kafka.property(name, value));
        let admin = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .create()
            .expect("a client for administration");
        Self {
            brokers: brokers.to_owned(),
            kafka: set(kafka).prefix(&prefix),
            prefix,
            topics: Arc::default(),
            eyes: Arc::new(Eyes {
                producer: ClientConfig::new()
                    .set("bootstrap.servers", brokers)
                    // It hears of a partition that is new only when it asks again.
                    .set("topic.metadata.refresh.interval.ms", "300")
                    .create()
                    .expect("a producer"),
                admin,
                consumers: Mutex::default(),
            }),
        }
    }

    /// What stands before its topics and groups.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Makes the topic of a subject, if it isn't there.
    pub async fn make_topic(&self, subject: &str, partitions: i32) {
        self.make_topic_with(subject, partitions, &[]).await;
    }

    /// The same with settings of the topic.
    pub async fn make_topic_with(&self, subject: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.make_replicated_topic(subject, partitions, 1, settings).await;
    }

    /// The same on several brokers.
    pub async fn make_replicated_topic(
        &self,
        subject: &str,
        partitions: i32,
        replicas: i32,
        settings: &[(&str, &str)],
    ) {
        let topic = format!("{}{subject}", self.prefix);
        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(replicas));
        let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
        patiently(async || {
            let made = self.eyes.admin.create_topics([&new], &options()).await;
            match made.as_deref() {
                Ok([Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))]) => Ok(()),
                other => Err(format!("the topic {topic}: {other:?}")),
            }
        })
        .await;
        let turns = Turns { partitions, next: 0 };
        self.topics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(topic, turns);
    }

    /// Lets the topic of a subject have that many partitions.
    pub async fn grow_topic(&self, subject: &str, partitions: i32) {
        let topic = format!("{}{subject}", self.prefix);
        let grown = self
            .eyes
            .admin
            .create_partitions([&NewPartitions::new(&topic, partitions as usize)], &options())
            .await
            .expect("an answer");
        assert!(grown.iter().all(Result::is_ok), "{grown:?}");
    }

    /// How many brokers have everything of each partition of a subject's topic; `None` when the server doesn't answer.
    pub async fn in_sync(&self, subject: &str) -> Option<usize> {
        let metadata = self.metadata(subject).await?;
        let partitions = metadata.topics().first()?.partitions();
        partitions.iter().map(|partition| partition.isr().len()).min()
    }

    async fn metadata(&self, subject: &str) -> Option<Metadata> {
        let topic = format!("{}{subject}", self.prefix);
        let metadata = self.look("nobody", move |eyes| eyes.fetch_metadata(Some(&topic), ASK));
        metadata.await.ok()
    }

    /// The leader of each partition of a subject's topic, by its number as a node; `None` when the server doesn't answer.
    pub async fn leaders(&self, subject: &str) -> Option<Vec<i32>> {
        let metadata = self.metadata(subject).await?;
        let partitions = metadata.topics().first()?.partitions();
        let mut leaders: Vec<_> = partitions.iter().map(|one| (one.id(), one.leader())).collect();
        leaders.sort_unstable();
        Some(leaders.into_iter().map(|(_, leader)| leader).collect())
    }

    /// Removes the records of a partition before that offset, as retention does.
    ///
    /// # Panics
    ///
    /// When the server doesn't do it.
    pub async fn delete_records(&self, subject: &str, partition: i32, before: i64) {
        let topic = format!("{}{subject}", self.prefix);
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(&topic, partition, Offset::Offset(before))
            .expect("an offset");
        let deleted = self.eyes.admin.delete_records(&offsets, &options()).await;
        deleted.expect("deleted");
    }

    /// Publishes messages to partition 0 in one transaction, which is committed or aborted; its last record is no message.
    ///
    /// # Panics
    ///
    /// When the server doesn't take them.
    pub async fn publish_in_transaction(&self, messages: Vec<Message>, commit: bool) {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("transactional.id", format!("{}tx", self.prefix));
        let producer: FutureProducer = config.create().expect("a producer");
        tokio::task::block_in_place(|| {
            producer.init_transactions(ASK).expect("transactions");
            producer.begin_transaction().expect("a transaction");
        });
        for message in messages {
            let topic = format!("{}{}", self.prefix, message.subject);
            let headers = message.headers.iter();
            let headers = headers.fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value })
            });
            let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&topic).partition(0);
            record.payload = message.payload.as_deref();
            record.headers = Some(headers);
            producer.send(record, Timeout::Never).await.expect("published");
        }
        tokio::task::block_in_place(|| {
            if commit {
                producer.commit_transaction(ASK).expect("committed");
            } else {
                producer.abort_transaction(ASK).expect("aborted");
            }
            drop(producer);
        });
    }

    /// The servers' addresses.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Deletes the topic of a subject, and returns when it is gone.
    pub async fn delete_topic(&self, subject: &str) {
        let topic = format!("{}{subject}", self.prefix);
        let gone = self
            .eyes
            .admin
            .delete_topics(&[&topic], &options())
            .await
            .expect("an answer");
        assert!(gone.iter().all(Result::is_ok), "{gone:?}");
        while self.in_sync(subject).await.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.topics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&topic);
    }

    /// Forgets a group's offsets. It must have no members.
    pub async fn forget_group(&self, group: &str) {
        let id = format!("{}{group}", self.prefix);
        let gone = self
            .eyes
            .admin
            .delete_groups(&[&id], &options())
            .await
            .expect("an answer");
        assert!(gone.iter().all(Result::is_ok), "{gone:?}");
    }

    /// Makes a topic of eight partitions with so many orders on it, each with an id of its own.
    ///
    /// # Panics
    ///
    /// When the server doesn't take them.
    pub async fn fill(&self, subject: &str, count: u64) {
        self.make_topic(subject, PARTITIONS).await;
        let topic = format!("{}{subject}", self.prefix);
        let partitions = u64::from(PARTITIONS.unsigned_abs());
        let mut last = Vec::new();
        for number in 0..count {
            let id = format!("evt-{number}");
            let headers = OwnedHeaders::new().insert(Header {
                key: "message_id",
                value: Some(&id),
            });
            let payload = format!(r#"{{"order_id":{number},"amount_cents":100}}"#);
            let partition = i32::try_from(number % partitions).expect("a partition");
            let mut record: FutureRecord<'_, [u8], String> = FutureRecord::to(&topic)
                .partition(partition)
                .payload(&payload)
                .headers(headers);
            loop {
                match self.eyes.producer.send_result(record) {
                    Ok(delivery) => break last.push(delivery),
                    // Its queue is full.
                    Err((_, again)) => record = again,
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        for delivery in last {
            delivery.await.expect("an answer").expect("published");
        }
    }

    /// The committed offsets of a group on the partitions of a subject, by partition; `None` where there is none.
    ///
    /// # Panics
    ///
    /// When the server doesn't answer.
    pub async fn committed(&self, group: &str, subject: &str) -> Vec<Option<i64>> {
        patiently(async || self.try_committed(group, subject).await.ok_or("no answer")).await
    }

    /// The same; `None` when the server doesn't answer.
    pub async fn try_committed(&self, group: &str, subject: &str) -> Option<Vec<Option<i64>>> {
        let topic = format!("{}{subject}", self.prefix);
        let partitions = self.look(group, move |eyes| offsets(eyes, &topic)).await.ok()?;
        Some(partitions.into_iter().map(|(committed, _)| committed).collect())
    }

    /// What is settled, as [`settled`](TestBroker::settled) has it; an error when the server doesn't answer.
    pub async fn try_settled(&self, group: &str, subject: &str) -> KafkaResult<Option<Settled>> {
        let in_hand = self.kafka.in_hand(group).await as u64;
        let topics: Vec<String> = {
            let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            let all = subject.strip_suffix('>');
            let is_ours = |topic: &&String| {
                let found = &topic[self.prefix.len()..];
                all.map_or(found == subject, |beginning| found.starts_with(beginning))
            };
            let ours = topics.keys().filter(is_ours);
            ours.cloned().collect()
        };
        let id = format!("{}{group}", self.prefix);
        let left = self.look(group, move |eyes| -> KafkaResult<Option<i64>> {
            let partitions: KafkaResult<Vec<_>> = topics.iter().map(|topic| offsets(eyes, topic)).collect();
            let partitions = partitions?.concat();
            let unread = partitions.iter().all(|(committed, _)| committed.is_none());
            if unread && !is_known(eyes, &id)? {
                return Ok(None);
            }
            let left = partitions.iter().map(|(committed, end)| end - committed.unwrap_or(0));
            Ok(Some(left.sum::<i64>()))
        });
        let Some(left) = left.await? else { return Ok(None) };
        let left = u64::try_from(left).expect("an offset before the end");
        let unacked = in_hand.min(left);
        Ok(Some(Settled {
            waiting: left - unacked,
            unacked,
        }))
    }

    /// The turn of a topic's next message.
    fn turns(&self, topic: &str) -> Option<Turns> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = topics.get_mut(topic)?;
        turns.next += 1;
        Some(*turns)
    }

    /// Publishes a message to a partition of choice, which a program can't.
    pub async fn publish_to(&self, message: Message, partition: i32) {
        let topic = format!("{}{}", self.prefix, message.subject);
        let headers = message
            .headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value })
            });
        for _ in 0..200 {
            let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&topic).partition(partition);
            record.key = message.key.as_deref();
            record.payload = message.payload.as_deref();
            record.headers = Some(headers.clone());
            match self.eyes.producer.send(record, Timeout::Never).await {
                Ok(_) => return,
                // The producer has not heard of the new partitions yet.
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::UnknownPartition), _)) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err((error, _)) => panic!("not published: {error}"),
            }
        }
        panic!("the producer doesn't hear of partition {partition} of {topic}");
    }

    /// Looks at the server, from a thread that may block.
    async fn look<T: Send + 'static>(&self, group: &str, look: impl FnOnce(&BaseConsumer) -> T + Send + 'static) -> T {
        let consumer = {
            let mut consumers = self.eyes.consumers.lock().unwrap_or_else(PoisonError::into_inner);
            let consumer = consumers.entry(group.to_owned()).or_insert_with(|| {
                let consumer = ClientConfig::new()
                    .set("bootstrap.servers", &self.brokers)
                    .set("group.id", format!("{}{group}", self.prefix))
                    .create();
                Arc::new(consumer.expect("a consumer"))
            });
            consumer.clone()
        };
        tokio::task::spawn_blocking(move || look(&consumer))
            .await
            .expect("looked")
    }
}

/// Asks again for a while: a busy server may be slow, or not know for a moment who coordinates a group.
async fn patiently<T, E: fmt::Debug>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    for _ in 0..50 {
        if let Ok(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ask().await.expect("the server's answer")
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .operation_timeout(Some(ASK))
        .request_timeout(Some(ASK))
}

/// For each partition of a topic its committed offset and its end.
fn offsets(consumer: &BaseConsumer, topic: &str) -> KafkaResult<Vec<(Option<i64>, i64)>> {
    let metadata = consumer.fetch_metadata(Some(topic), ASK)?;
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        partitions.add_partition(topic, partition.id());
    }
    let committed = consumer.committed_offsets(partitions, ASK)?;
    let mut found = Vec::new();
    for element in committed.elements() {
        element.error()?;
        let (first, end) = consumer.fetch_watermarks(topic, element.partition(), ASK)?;
        let committed = match element.offset() {
            Offset::Offset(offset) => Some(offset.max(first)),
            _ => None,
        };
        found.push((element.partition(), committed, end));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, committed, end)| (committed, end)).collect())
}

/// Whether a group has had members.
fn is_known(consumer: &BaseConsumer, group: &str) -> KafkaResult<bool> {
    let groups = consumer.fetch_group_list(Some(group), ASK)?;
    let mut states = groups.groups().iter().map(GroupInfo::state);
    Ok(states.any(|state| !["", "Dead"].contains(&state)))
}

impl TestBroker for KafkaCluster {
    type Broker = Kafka;

    async fn fresh() -> Self {
        let cluster = tokio::task::spawn_blocking(|| Self::on(&Shared::get().brokers()));
        let cluster = cluster.await.expect("a server");
        cluster.make_topic("order.created", 1).await;
        cluster
    }

    fn connect(&self) -> Kafka {
        self.kafka.clone()
    }

    const COUNTS: bool = false;
    // Offsets are committed in batches.
    const ACKS_AT_ONCE: bool = false;
    // A partition goes to another consumer when that one joins, or this one is gone.
    const LEASES: bool = false;
    // A member that was killed is missed after its session, and kills at shorter intervals are one long rebalance.
    const KILLS: Duration = Duration::from_millis(2500);

    async fn spread(&self, subject: &str) {
        let topic = format!("{}{subject}", self.prefix);
        if self.turns(&topic).is_some() {
            self.grow_topic(subject, PARTITIONS).await;
        } else {
            self.make_topic(subject, PARTITIONS).await;
        }
        let turns = Turns {
            partitions: PARTITIONS,
            next: 0,
        };
        self.topics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(topic, turns);
    }

    async fn publish(&self, message: Message) {
        let topic = format!("{}{}", self.prefix, message.subject);
        let turns = self.turns(&topic);
        if turns.is_none() {
            self.make_topic(&message.subject, 1).await;
        }
        match turns {
            Some(turns) if turns.partitions > 1 => self.publish_to(message, turns.next % turns.partitions).await,
            _ => {
                self.kafka.publish(message).await.expect("published");
            }
        }
    }

    async fn settled(&self, group: &str, subject: &str) -> Option<Settled> {
        patiently(async || self.try_settled(group, subject).await).await
    }

    fn url(&self) -> Option<String> {
        Some(format!("kafka://{}?prefix={}", self.brokers, self.prefix))
    }

    fn variables(&self) -> Vec<(String, String)> {
        let variable = |(name, value): &(&str, &str)| {
            let name = name.to_ascii_uppercase().replace('.', "_");
            (format!("INBOX_KAFKA_{name}"), (*value).to_owned())
        };
        PROPERTIES.iter().map(variable).collect()
    }

    /// A static member keeps its partitions while it is away, and has no need to be quick.
    fn member(&self, name: &str) -> Vec<(String, String)> {
        [("GROUP_INSTANCE_ID", name), ("SESSION_TIMEOUT_MS", "60000")]
            .map(|(property, value)| (format!("INBOX_KAFKA_{property}"), value.to_owned()))
            .to_vec()
    }

    async fn pass(&self, time: Duration) {
        self.kafka.advance_clock(time);
    }
}

impl fmt::Debug for KafkaCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaCluster")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Drop for Eyes {
    fn drop(&mut self) {
        // The end of a client blocks.
        let consumers = std::mem::take(self.consumers.get_mut().unwrap_or_else(PoisonError::into_inner));
        std::thread::spawn(move || drop(consumers));
    }
}
