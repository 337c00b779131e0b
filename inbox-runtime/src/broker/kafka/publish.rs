//! Publishing: one producer for all clones of a `Kafka`, created on first use.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
    producer::{FutureProducer, FutureRecord, Producer as _, future_producer::Delivery},
    util::Timeout,
};

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
struct Producer {
    client: FutureProducer<ProducerCallbacks>,
    events: Arc<ClientEvents>,
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
        let events = Arc::new(ClientEvents::new(options));
        let callbacks = ProducerCallbacks(events.clone());
        let client = options.producer().create_with_context(callbacks).map_err(|error| {
            let error = options.redact(&errors::config_error(&error));
            BrokerError::Invalid(format!("a Kafka producer can't be created: {error}"))
        })?;
        let producer = Producer { client, events };
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
fn drop_on_thread(producer: Option<Producer>) {
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
    message: Message,
) -> Result<Published, BrokerError> {
    let producer = producer_cell.get(options)?;
    let topic = topic_names::topic(&options.prefix, &message.subject);
    let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&topic);
    record.key = message.key.as_deref();
    record.payload = message.payload.as_deref();
    if !message.headers.is_empty() {
        record.headers = Some(record::owned_headers(&message.headers));
    }
    match producer.client.send(record, Timeout::Never).await {
        Ok(Delivery { partition, offset, .. }) => {
            if producer.events.reachability.mark_up() {
                tracing::info!("publishing to Kafka works again");
            }
            Ok(Published::new(record::position(&topic, partition, offset)))
        }
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
        Some(RDKafkaErrorCode::MessageTimedOut) => match producer.events.reachability.cause() {
            Some(cause) => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), cause),
            None => tokio::task::spawn_blocking(move || timed_out(&producer, &topic, error))
                .await
                .unwrap_or_else(|panic| BrokerError::unavailable("could not publish", panic)),
        },
        Some(code) => errors::publish_error(&topic, code, error),
        None => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), error),
    }
}

/// Asks the brokers why a message was not confirmed in time.
fn timed_out(producer: &Producer, topic: &str, error: KafkaError) -> BrokerError {
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
