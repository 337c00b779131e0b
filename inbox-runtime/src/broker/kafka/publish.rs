//! Publishing one message: one producer for all clones of a `Kafka`, created on first use.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
    producer::{FutureProducer, FutureRecord, Producer as _, future_producer::Delivery},
    util::Timeout,
};

use inbox_rules::subject_rules;

use super::{
    client_events::{ClientEvents, ProducerCallbacks},
    errors,
    options::KafkaOptions,
    record, topic_names,
};
use crate::{
    broker::{BrokerError, Published},
    delivery::Message,
};

/// The timeout of a metadata request after a failed publish.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// A producer with its events.
#[derive(Clone)]
pub(super) struct Producer {
    pub(super) client: FutureProducer<ProducerCallbacks>,
    pub(super) events: Arc<ClientEvents>,
}

impl Producer {
    pub(super) fn new(config: &ClientConfig, options: &KafkaOptions) -> Result<Self, BrokerError> {
        let events = Arc::new(ClientEvents::new(options));
        let callbacks = ProducerCallbacks(events.clone());
        let client = config.create_with_context(callbacks).map_err(|error| {
            let error = options.redact(&errors::config_error(&error));
            BrokerError::Invalid(format!("a Kafka producer can't be created: {error}"))
        })?;
        Ok(Self { client, events })
    }

    /// What is told of a message that all in-sync replicas have.
    pub(super) fn published(&self, topic: &str, Delivery { partition, offset, .. }: &Delivery) -> Published {
        if self.events.reachability.mark_up() {
            tracing::info!("publishing to Kafka works again");
        }
        Published::new(record::position(topic, *partition, *offset))
    }
}

/// Refuses a message whose subject is none to publish to.
pub(super) fn check(message: &Message) -> Result<(), BrokerError> {
    subject_rules::check_publish_subject(&message.subject)
        .map_err(|message| BrokerError::Refused { message, source: None })
}

/// A message as a record of its topic.
pub(super) fn record<'a>(topic: &'a str, message: &'a Message) -> FutureRecord<'a, [u8], [u8]> {
    let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic);
    record.key = message.key.as_deref();
    record.payload = message.payload.as_deref();
    if !message.headers.is_empty() {
        record.headers = Some(record::owned_headers(&message.headers));
    }
    record
}

/// The producer, once it is created.
#[derive(Default)]
pub(super) struct ProducerCell(Mutex<Option<Producer>>);

impl ProducerCell {
    fn get(&self, options: &KafkaOptions) -> Result<Producer, BrokerError> {
        let mut cell = self.0.lock();
        if let Some(producer) = &*cell {
            return Ok(producer.clone());
        }
        let producer = Producer::new(&options.producer(), options)?;
        *cell = Some(producer.clone());
        Ok(producer)
    }

    /// Drops the producer; the next publish creates another one.
    fn discard(&self) {
        let producer = self.0.lock().take();
        drop_on_thread(producer);
    }
}

/// Dropping a producer blocks, which a thread of the runtime must not.
pub(super) fn drop_on_thread(producer: Option<Producer>) {
    if let Some(producer) = producer {
        std::thread::spawn(move || drop(producer));
    }
}

impl Drop for ProducerCell {
    fn drop(&mut self) {
        drop_on_thread(self.0.get_mut().take());
    }
}

impl fmt::Debug for ProducerCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerCell").finish_non_exhaustive()
    }
}

/// Publishes a message; returns when all in-sync replicas have it.
pub(super) async fn publish(
    producer_cell: &ProducerCell,
    options: &KafkaOptions,
    message: &Message,
) -> Result<Published, BrokerError> {
    check(message)?;
    let producer = producer_cell.get(options)?;
    let topic = topic_names::topic(&options.prefix, &message.subject);
    match producer.client.send(record(&topic, message), Timeout::Never).await {
        Ok(delivery) => Ok(producer.published(&topic, &delivery)),
        Err((error, _)) => Err(failed(producer_cell, producer, topic, error).await),
    }
}

/// The error of a failed publish.
async fn failed(producer_cell: &ProducerCell, producer: Producer, topic: String, error: KafkaError) -> BrokerError {
    match error.rdkafka_error_code() {
        // The producer can't be used any more, and knows why.
        Some(RDKafkaErrorCode::Fatal) => {
            let fatal = producer.client.client().fatal_error();
            producer_cell.discard();
            drop_on_thread(Some(producer));
            match fatal {
                Some((code, text)) => {
                    tracing::warn!(
                        error = text,
                        "the Kafka producer failed fatally; the next publish creates another one"
                    );
                    errors::publish_error(&topic, code, KafkaError::MessageProduction(code))
                }
                None => errors::publish_error(&topic, RDKafkaErrorCode::Fatal, error),
            }
        }
        Some(RDKafkaErrorCode::MessageTimedOut) => timed_out(&producer, topic).await,
        Some(code) => errors::publish_error(&topic, code, error),
        None => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), error),
    }
}

/// Why a message was not confirmed in time.
pub(super) async fn timed_out(producer: &Producer, topic: String) -> BrokerError {
    if let Some(cause) = producer.events.reachability.cause() {
        return BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), cause);
    }
    let producer = producer.clone();
    tokio::task::spawn_blocking(move || ask_why(&producer, &topic))
        .await
        .unwrap_or_else(|panic| BrokerError::unavailable("could not publish", panic))
}

/// Asks the brokers why a message was not confirmed in time.
fn ask_why(producer: &Producer, topic: &str) -> BrokerError {
    let error = KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut);
    let metadata = match producer.client.client().fetch_metadata(Some(topic), METADATA_TIMEOUT) {
        Ok(metadata) => metadata,
        Err(error) => {
            let what = format!("could not publish to the topic `{topic}`, and no broker answers why");
            return BrokerError::unavailable(what, error);
        }
    };
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    if let Some(code) = found.and_then(MetadataTopic::error) {
        return errors::publish_error(topic, code.into(), error);
    }
    let partitions = found.map(MetadataTopic::partitions).unwrap_or_default();
    let leaderless = partitions.iter().filter(|partition| partition.leader() < 0);
    let leaderless: Vec<_> = leaderless.map(|partition| partition.id().to_string()).collect();
    if leaderless.is_empty() {
        let what = format!(
            "the topic `{topic}`: the brokers didn't confirm the message in time; fewer replicas may be in sync than its \
             `min.insync.replicas`"
        );
        BrokerError::not_now(what, error)
    } else {
        let what = format!(
            "the topic `{topic}`: no leader for the partitions {}",
            leaderless.join(", ")
        );
        BrokerError::not_now(what, error)
    }
}
