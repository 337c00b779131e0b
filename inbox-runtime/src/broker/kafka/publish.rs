//! Publishing: one producer for each broker, made when it is needed.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{FutureProducer, FutureRecord, future_producer::Delivery},
    util::Timeout,
};

use super::{config::Settings, log, record, topics};
use crate::{
    broker::{BrokerError, Published},
    delivery::Message,
};

/// What a producer tells us.
pub(super) struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "trouble with Kafka while publishing");
    }
}

type Producer = FutureProducer<Context>;

/// The place of the producer.
#[derive(Default)]
pub(super) struct Producers(Mutex<Option<Producer>>);

impl Producers {
    fn get(&self, settings: &Settings) -> Result<Producer, BrokerError> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = &*slot {
            return Ok(producer.clone());
        }
        let producer: Producer = settings
            .producer()
            .create_with_context(Context)
            .map_err(|error| BrokerError::Invalid(format!("a Kafka producer can't be made: {error}")))?;
        *slot = Some(producer.clone());
        Ok(producer)
    }

    /// The next message gets another one.
    fn discard(&self) {
        let producer = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        end(producer);
    }
}

/// Its end blocks, so it must not come to one on a thread that runs tasks.
fn end(producer: Option<Producer>) {
    if let Some(producer) = producer {
        std::thread::spawn(move || drop(producer));
    }
}

impl Drop for Producers {
    fn drop(&mut self) {
        end(self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl fmt::Debug for Producers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producers").finish_non_exhaustive()
    }
}

/// Publishes a message; returns when all replicas that must have it do.
pub(super) async fn publish(
    producers: &Producers,
    settings: &Settings,
    message: Message,
) -> Result<Published, BrokerError> {
    let producer = producers.get(settings)?;
    let topic = topics::topic(&settings.prefix, &message.subject);
    let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&topic);
    record.key = message.key.as_deref();
    record.payload = message.payload.as_deref();
    if !message.headers.is_empty() {
        record.headers = Some(record::owned_headers(&message.headers));
    }
    match producer.send(record, Timeout::Never).await {
        Ok(Delivery { partition, offset, .. }) => Ok(Published::new(record::position(&topic, partition, offset))),
        Err((error, _)) => {
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
                producers.discard();
            }
            Err(failed(&topic, error))
        }
    }
}

fn failed(topic: &str, error: KafkaError) -> BrokerError {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition) => {
            BrokerError::unavailable(format!("there is no topic `{topic}`; make it first"), error)
        }
        Some(Code::MessageSizeTooLarge) => BrokerError::Invalid(format!(
            "the message is larger than the topic `{topic}` or the producer allows ({error}); raise `max.message.bytes` of \
             the topic, and set INBOX_KAFKA_MESSAGE_MAX_BYTES"
        )),
        _ => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), error),
    }
}
