//! Publishing: one producer for each broker, made when it is needed.

use std::{
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientContext,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
    producer::{FutureProducer, FutureRecord, Producer as _, future_producer::Delivery},
    util::Timeout,
};

use super::{
    config::{Settings, explain},
    errors,
    events::{self, Events},
    record, topics,
};
use crate::{
    broker::{BrokerError, Published},
    delivery::Message,
};

/// How long the brokers may take to say what is wrong with a topic.
const ASK: Duration = Duration::from_secs(5);

/// What a producer, or a client for administration, tells us.
pub(super) struct Context(pub(super) Arc<Events>);

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    /// Logged once: the error of each publish says it too.
    fn error(&self, error: KafkaError, reason: &str) {
        let Some((about, _, text)) = self.0.error(&error, reason) else {
            return;
        };
        if events::is_down(about, &text) {
            let (why, news) = self.0.connection.down();
            if news {
                tracing::warn!(why, "nothing can be published to Kafka");
            }
        } else {
            tracing::debug!(%error, reason = text, "trouble with Kafka while publishing");
        }
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn StdError>> {
        self.0.token()
    }
}

/// A producer, and what it has told.
#[derive(Clone)]
struct Producer {
    client: FutureProducer<Context>,
    events: Arc<Events>,
}

/// The place of the producer.
#[derive(Default)]
pub(super) struct Producers(Mutex<Option<Producer>>);

impl Producers {
    fn get(&self, settings: &Settings) -> Result<Producer, BrokerError> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = &*slot {
            return Ok(producer.clone());
        }
        let events = Arc::new(Events::new(settings));
        let client = settings.producer().create_with_context(Context(events.clone()));
        let client = client.map_err(|error| {
            let error = settings.redact(&explain(&error));
            BrokerError::Invalid(format!("a Kafka producer can't be made: {error}"))
        })?;
        let producer = Producer { client, events };
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
    match producer.client.send(record, Timeout::Never).await {
        Ok(Delivery { partition, offset, .. }) => {
            if producer.events.connection.up() {
                tracing::info!("messages are published to Kafka again");
            }
            Ok(Published::new(record::position(&topic, partition, offset)))
        }
        Err((error, _)) => Err(failed(producers, producer, topic, error).await),
    }
}

/// What the error of a message means.
async fn failed(producers: &Producers, producer: Producer, topic: String, error: KafkaError) -> BrokerError {
    match error.rdkafka_error_code() {
        // The producer is of no more use, and has kept why.
        Some(RDKafkaErrorCode::Fatal) => {
            let fatal = producer.client.client().fatal_error();
            producers.discard();
            end(Some(producer));
            match fatal {
                Some((code, text)) => {
                    tracing::warn!(
                        error = text,
                        "the producer of Kafka came to its end; the next message gets another one"
                    );
                    errors::publishing(&topic, code, KafkaError::MessageProduction(code))
                }
                None => errors::publishing(&topic, RDKafkaErrorCode::Fatal, error),
            }
        }
        // It was not confirmed in time, whatever kept it.
        Some(RDKafkaErrorCode::MessageTimedOut) => match producer.events.connection.cause() {
            Some(cause) => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), cause),
            None => {
                let asked = tokio::task::spawn_blocking(move || not_confirmed(&producer, &topic, error));
                asked
                    .await
                    .unwrap_or_else(|panic| BrokerError::unavailable("could not publish", panic))
            }
        },
        Some(code) => errors::publishing(&topic, code, error),
        None => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), error),
    }
}

/// Asks the brokers why a message was not confirmed in time.
fn not_confirmed(producer: &Producer, topic: &str, error: KafkaError) -> BrokerError {
    let metadata = match producer.client.client().fetch_metadata(Some(topic), ASK) {
        Ok(metadata) => metadata,
        Err(error) => {
            let what = format!("could not publish to the topic `{topic}`, and no broker says why");
            return BrokerError::unavailable(what, error);
        }
    };
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    if let Some(code) = found.and_then(MetadataTopic::error) {
        return errors::publishing(topic, code.into(), error);
    }
    let partitions = found.map(MetadataTopic::partitions).unwrap_or_default();
    let headless = partitions.iter().filter(|partition| partition.leader() < 0);
    let headless: Vec<_> = headless.map(|partition| partition.id().to_string()).collect();
    if headless.is_empty() {
        let what = format!(
            "the topic `{topic}`: the brokers didn't confirm the message in time; fewer replicas may be in sync than its \
             `min.insync.replicas`"
        );
        BrokerError::not_now(what, error)
    } else {
        let what = format!(
            "the topic `{topic}`: no leader for the partitions {}",
            headless.join(", ")
        );
        BrokerError::not_now(what, error)
    }
}
