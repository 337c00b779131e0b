//! Apache Kafka for tests: each test has its own topics and groups on a shared server.

mod offsets;
mod topics;

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
    ClientConfig,
    admin::AdminClient,
    client::DefaultClientContext,
    consumer::BaseConsumer,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
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
