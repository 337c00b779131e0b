//! Apache Kafka for tests: each test has its own topics and groups on a shared server.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{Kafka, Message};
use parking_lot::Mutex;
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

/// Properties by which killed members and new topics are noticed quickly.
const PROPERTIES: [(&str, &str); 4] = [
    ("session.timeout.ms", "1500"),
    ("heartbeat.interval.ms", "200"),
    ("topic.metadata.refresh.interval.ms", "300"),
    ("fetch.wait.max.ms", "100"),
];
/// The number of partitions of a topic whose messages are handled concurrently.
const PARTITIONS: i32 = 8;
/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The topics and groups of one test.
#[derive(Clone)]
pub struct KafkaCluster {
    brokers: String,
    prefix: String,
    kafka: Kafka,
    /// The topics, with the partition of the next message.
    topics: Arc<Mutex<BTreeMap<String, RoundRobin>>>,
    observer: Arc<Observer>,
}

#[derive(Clone, Copy, Default)]
struct RoundRobin {
    partitions: i32,
    next: i32,
}

/// The test's own clients.
struct Observer {
    producer: FutureProducer,
    admin: AdminClient<DefaultClientContext>,
    /// For the offsets of a group: consumers that never join it.
    consumers: Mutex<HashMap<String, Arc<BaseConsumer>>>,
}

impl KafkaCluster {
    /// Creates a new prefix on the server with that address.
    #[must_use]
    pub fn on(brokers: &str) -> Self {
        Self::with(brokers, |kafka| kafka)
    }

    /// The same, with a broker that `set` configures.
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
            .expect("an admin client");
        Self {
            brokers: brokers.to_owned(),
            kafka: set(kafka).prefix(&prefix),
            prefix,
            topics: Arc::default(),
            observer: Arc::new(Observer {
                producer: ClientConfig::new()
                    .set("bootstrap.servers", brokers)
                    // New partitions are found by a metadata refresh only.
                    .set("topic.metadata.refresh.interval.ms", "300")
                    .create()
                    .expect("a producer"),
                admin,
                consumers: Mutex::default(),
            }),
        }
    }

    /// The prefix of its topics and groups.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Creates the topic of a subject, if it doesn't exist.
    pub async fn create_topic(&self, subject: &str, partitions: i32) {
        self.create_topic_with(subject, partitions, &[]).await;
    }

    /// The same with settings of the topic.
    pub async fn create_topic_with(&self, subject: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.create_replicated_topic(subject, partitions, 1, settings).await;
    }

    /// The same on several brokers.
    pub async fn create_replicated_topic(
        &self,
        subject: &str,
        partitions: i32,
        replicas: i32,
        settings: &[(&str, &str)],
    ) {
        let topic = format!("{}{subject}", self.prefix);
        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(replicas));
        let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
        retry(async || {
            let made = self.observer.admin.create_topics([&new], &options()).await;
            match made.as_deref() {
                Ok([Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))]) => Ok(()),
                other => Err(format!("the topic {topic}: {other:?}")),
            }
        })
        .await;
        let round_robin = RoundRobin { partitions, next: 0 };
        self.topics.lock().insert(topic, round_robin);
    }

    /// Grows the topic of a subject to that many partitions.
    pub async fn grow_topic(&self, subject: &str, partitions: i32) {
        let topic = format!("{}{subject}", self.prefix);
        let grown = self
            .observer
            .admin
            .create_partitions([&NewPartitions::new(&topic, partitions as usize)], &options())
            .await
            .expect("an answer");
        assert!(grown.iter().all(Result::is_ok), "{grown:?}");
    }

    /// The lowest number of in-sync replicas of a subject's partitions; `None` if the server doesn't answer.
    pub async fn in_sync(&self, subject: &str) -> Option<usize> {
        let metadata = self.metadata(subject).await?;
        let partitions = metadata.topics().first()?.partitions();
        partitions.iter().map(|partition| partition.isr().len()).min()
    }

    async fn metadata(&self, subject: &str) -> Option<Metadata> {
        let topic = format!("{}{subject}", self.prefix);
        let metadata = self.observe("nobody", move |client| {
            client.fetch_metadata(Some(&topic), REQUEST_TIMEOUT)
        });
        metadata.await.ok()
    }

    /// The node id of each partition's leader, of a subject's topic; `None` if the server doesn't answer.
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
    /// If the server refuses.
    pub async fn delete_records(&self, subject: &str, partition: i32, before: i64) {
        let topic = format!("{}{subject}", self.prefix);
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(&topic, partition, Offset::Offset(before))
            .expect("an offset");
        let deleted = self.observer.admin.delete_records(&offsets, &options()).await;
        deleted.expect("deleted");
    }

    /// Publishes messages to partition 0 in one transaction, which is committed or aborted; a control record follows
    /// them.
    ///
    /// # Panics
    ///
    /// If the server refuses them.
    pub async fn publish_in_transaction(&self, messages: Vec<Message>, commit: bool) {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("transactional.id", format!("{}tx", self.prefix));
        let producer: FutureProducer = config.create().expect("a producer");
        tokio::task::block_in_place(|| {
            producer.init_transactions(REQUEST_TIMEOUT).expect("transactions");
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
                producer.commit_transaction(REQUEST_TIMEOUT).expect("committed");
            } else {
                producer.abort_transaction(REQUEST_TIMEOUT).expect("aborted");
            }
            drop(producer);
        });
    }

    /// The brokers' addresses.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Deletes the topic of a subject, and returns when it no longer exists.
    pub async fn delete_topic(&self, subject: &str) {
        let topic = format!("{}{subject}", self.prefix);
        let deleted = self
            .observer
            .admin
            .delete_topics(&[&topic], &options())
            .await
            .expect("an answer");
        assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        while self.in_sync(subject).await.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.topics.lock().remove(&topic);
    }

    /// Deletes a group with its offsets. Its members must have left; a busy server may notice that a moment later.
    pub async fn delete_group(&self, group: &str) {
        let id = format!("{}{group}", self.prefix);
        retry(async || {
            let deleted = self.observer.admin.delete_groups(&[&id], &options()).await;
            match deleted.as_deref() {
                Ok([Ok(_)]) => Ok(()),
                other => Err(format!("the group {id}: {other:?}")),
            }
        })
        .await;
    }

    /// Creates a topic of eight partitions with that many orders, each with its own id.
    ///
    /// # Panics
    ///
    /// If the server refuses them.
    pub async fn fill(&self, subject: &str, count: u64) {
        self.create_topic(subject, PARTITIONS).await;
        let topic = format!("{}{subject}", self.prefix);
        let partitions = u64::from(PARTITIONS.unsigned_abs());
        let mut deliveries = Vec::new();
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
                match self.observer.producer.send_result(record) {
                    Ok(delivery) => break deliveries.push(delivery),
                    // The producer's queue is full.
                    Err((_, unsent)) => record = unsent,
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        for delivery in deliveries {
            delivery.await.expect("an answer").expect("published");
        }
    }

    /// The committed offsets of a group on the partitions of a subject, by partition; `None` where there is none.
    ///
    /// # Panics
    ///
    /// If the server doesn't answer.
    pub async fn committed(&self, group: &str, subject: &str) -> Vec<Option<i64>> {
        retry(async || self.try_committed(group, subject).await.ok_or("no answer")).await
    }

    /// The same; `None` if the server doesn't answer.
    pub async fn try_committed(&self, group: &str, subject: &str) -> Option<Vec<Option<i64>>> {
        let topic = format!("{}{subject}", self.prefix);
        let partitions = self.observe(group, move |client| offsets(client, &topic)).await.ok()?;
        Some(partitions.into_iter().map(|(committed, _)| committed).collect())
    }

    /// [`settled`](TestBroker::settled); an error if the server doesn't answer.
    pub async fn try_settled(&self, group: &str, subject: &str) -> KafkaResult<Option<Settled>> {
        let unsettled = self.kafka.unsettled(group).await as u64;
        let topics: Vec<String> = {
            let topics = self.topics.lock();
            let wildcard = subject.strip_suffix('>');
            let is_ours = |topic: &&String| {
                let topic = &topic[self.prefix.len()..];
                wildcard.map_or(topic == subject, |start| topic.starts_with(start))
            };
            let ours = topics.keys().filter(is_ours);
            ours.cloned().collect()
        };
        let id = format!("{}{group}", self.prefix);
        let left = self.observe(group, move |client| -> KafkaResult<Option<i64>> {
            let partitions: KafkaResult<Vec<_>> = topics.iter().map(|topic| offsets(client, topic)).collect();
            let partitions = partitions?.concat();
            let unread = partitions.iter().all(|(committed, _)| committed.is_none());
            if unread && !exists(client, &id)? {
                return Ok(None);
            }
            let left = partitions.iter().map(|(committed, end)| end - committed.unwrap_or(0));
            Ok(Some(left.sum::<i64>()))
        });
        let Some(left) = left.await? else { return Ok(None) };
        let left = u64::try_from(left).expect("an offset before the end");
        let unacked = unsettled.min(left);
        Ok(Some(Settled {
            waiting: left - unacked,
            unacked,
        }))
    }

    /// Advances a topic's round robin.
    fn next_partition(&self, topic: &str) -> Option<RoundRobin> {
        let mut topics = self.topics.lock();
        let partition = topics.get_mut(topic)?;
        partition.next += 1;
        Some(*partition)
    }

    /// Publishes a message to that partition.
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
            match self.observer.producer.send(record, Timeout::Never).await {
                Ok(_) => return,
                // The producer doesn't know the new partitions yet.
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::UnknownPartition), _)) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err((error, _)) => panic!("not published: {error}"),
            }
        }
        panic!("the producer doesn't find partition {partition} of {topic}");
    }

    /// Requests something of the server, on a thread that may block.
    async fn observe<T: Send + 'static>(
        &self,
        group: &str,
        request: impl FnOnce(&BaseConsumer) -> T + Send + 'static,
    ) -> T {
        let consumer = {
            let mut consumers = self.observer.consumers.lock();
            let consumer = consumers.entry(group.to_owned()).or_insert_with(|| {
                let consumer = ClientConfig::new()
                    .set("bootstrap.servers", &self.brokers)
                    .set("group.id", format!("{}{group}", self.prefix))
                    .create();
                Arc::new(consumer.expect("a consumer"))
            });
            consumer.clone()
        };
        tokio::task::spawn_blocking(move || request(&consumer))
            .await
            .expect("a result")
    }
}

/// Retries for a while: a busy server may be slow, or have no coordinator for a group at the moment.
async fn retry<T, E: fmt::Debug>(request: impl AsyncFn() -> Result<T, E>) -> T {
    for _ in 0..50 {
        if let Ok(answer) = request().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    request().await.expect("the server's answer")
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .operation_timeout(Some(REQUEST_TIMEOUT))
        .request_timeout(Some(REQUEST_TIMEOUT))
}

/// The committed offset and the end of each partition of a topic.
fn offsets(consumer: &BaseConsumer, topic: &str) -> KafkaResult<Vec<(Option<i64>, i64)>> {
    let metadata = consumer.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        partitions.add_partition(topic, partition.id());
    }
    let committed = consumer.committed_offsets(partitions, REQUEST_TIMEOUT)?;
    let mut found = Vec::new();
    for element in committed.elements() {
        element.error()?;
        let (first, end) = consumer.fetch_watermarks(topic, element.partition(), REQUEST_TIMEOUT)?;
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
fn exists(consumer: &BaseConsumer, group: &str) -> KafkaResult<bool> {
    let groups = consumer.fetch_group_list(Some(group), REQUEST_TIMEOUT)?;
    let mut states = groups.groups().iter().map(GroupInfo::state);
    Ok(states.any(|state| !["", "Dead"].contains(&state)))
}

impl TestBroker for KafkaCluster {
    type Broker = Kafka;

    async fn fresh() -> Self {
        let cluster = tokio::task::spawn_blocking(|| Self::on(&Shared::get().brokers()));
        let cluster = cluster.await.expect("a server");
        cluster.create_topic("order.created", 1).await;
        cluster
    }

    fn connect(&self) -> Kafka {
        self.kafka.clone()
    }

    const COUNTS: bool = false;
    // Offsets are committed in batches.
    const ACKS_AT_ONCE: bool = false;
    // A partition moves to another member when that one joins or this one leaves.
    const LEASES: bool = false;
    // A killed member is expelled after its session timeout; kills at shorter intervals are one long rebalance.
    const KILLS: Duration = Duration::from_millis(2500);

    async fn spread(&self, subject: &str) {
        let topic = format!("{}{subject}", self.prefix);
        if self.next_partition(&topic).is_some() {
            self.grow_topic(subject, PARTITIONS).await;
        } else {
            self.create_topic(subject, PARTITIONS).await;
        }
        let round_robin = RoundRobin {
            partitions: PARTITIONS,
            next: 0,
        };
        self.topics.lock().insert(topic, round_robin);
    }

    async fn publish(&self, message: Message) {
        let topic = format!("{}{}", self.prefix, message.subject);
        let next = self.next_partition(&topic);
        if next.is_none() {
            self.create_topic(&message.subject, 1).await;
        }
        match next {
            Some(topic) if topic.partitions > 1 => self.publish_to(message, topic.next % topic.partitions).await,
            _ => {
                self.kafka.publish(message).await.expect("published");
            }
        }
    }

    async fn settled(&self, group: &str, subject: &str) -> Option<Settled> {
        retry(async || self.try_settled(group, subject).await).await
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

    /// A static member, which keeps its partitions during a restart.
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

impl Drop for Observer {
    fn drop(&mut self) {
        // Dropping a client blocks.
        let consumers = std::mem::take(self.consumers.get_mut());
        std::thread::spawn(move || drop(consumers));
    }
}
