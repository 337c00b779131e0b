//! Publishing many messages at once, in their order.
//!
//! Each call has a producer for itself, which sends nothing after what it could not send:
//!
//! * One request at a time to each broker. With more, a broker that knows nothing of a new producer takes the second request
//!   although the first one failed, and librdkafka then takes the first one for stored.
//! * No message ever times out in it: librdkafka would send the ones behind. The call has a timeout instead, which purges it.
//! * After a batch that the brokers refuse it is at its end (`enable.gapless.guarantee`).
//!
//! So what is on the brokers is always what was queued for a partition, up to some point. Which message of a batch was refused
//! nobody says: what such a failure leaves is published one by one, by a producer that is used for nothing else.

use std::{collections::BTreeMap, fmt, time::Duration};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    producer::{Producer as _, PurgeConfig, future_producer::OwnedDeliveryResult},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    errors,
    options::KafkaOptions,
    publish::{self, Producer, ProducerCell, drop_on_thread},
    topic_names,
};
use crate::{
    broker::{
        BrokerError, Published,
        send_order::{Pipelining, SendOrder},
    },
    delivery::Message,
};

/// How long a failed producer may take to report what became of its messages.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a message is queued again that had no space in the producer's queue.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);
/// The most producers that are kept for later calls.
const MAX_IDLE: usize = 16;

/// The producers that no call uses now.
#[derive(Default)]
pub(super) struct IdleProducers(Mutex<Vec<Producer>>);

impl IdleProducers {
    fn take(&self, options: &KafkaOptions) -> Result<Exclusive<'_>, BrokerError> {
        let idle = self.0.lock().pop();
        let producer = match idle {
            Some(producer) => producer,
            None => Producer::new(&options.ordered_producer(), options)?,
        };
        Ok(Exclusive(Some(producer), self))
    }
}

impl Drop for IdleProducers {
    fn drop(&mut self) {
        for producer in self.0.get_mut().drain(..) {
            drop_on_thread(Some(producer));
        }
    }
}

impl fmt::Debug for IdleProducers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleProducers").finish_non_exhaustive()
    }
}

/// The producer of one call. Dropped, it is discarded with all that it has not sent.
struct Exclusive<'a>(Option<Producer>, &'a IdleProducers);

impl Exclusive<'_> {
    /// Keeps it for another call: nothing is left in it.
    fn give_back(mut self) {
        let mut idle = self.1.0.lock();
        if idle.len() < MAX_IDLE {
            idle.extend(self.0.take());
        }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        drop_on_thread(self.0.take());
    }
}

/// Publishes messages; returns what came of each.
pub(super) async fn publish_all(
    idle: &IdleProducers,
    options: &KafkaOptions,
    messages: &[Message],
) -> Vec<Result<Published, BrokerError>> {
    let exclusive = match idle.take(options) {
        Ok(exclusive) => exclusive,
        Err(error) => return messages.iter().map(|_| Err(error.copied())).collect(),
    };
    let Some(producer) = exclusive.0.clone() else {
        return Vec::new();
    };
    let mut call = Call {
        options,
        messages,
        producer,
        order: SendOrder::new(messages, Pipelining::Rest),
        unsent: None,
        unconfirmed: FuturesUnordered::new(),
    };
    match call.send().await {
        Ok(()) => exclusive.give_back(),
        Err(failure) => {
            call.collect_reports(&failure).await;
            drop(exclusive);
            call.resolve(failure).await;
        }
    }
    call.order.finish()
}

/// Why the rest of a call can't be sent by its producer.
enum Failure {
    /// Nothing was confirmed for the time that a message may take.
    TimedOut,
    /// The brokers refuse a batch, or can't store it.
    Batch,
    /// The producer is at its end.
    Producer(BrokerError),
}

struct Call<'a> {
    options: &'a KafkaOptions,
    messages: &'a [Message],
    producer: Producer,
    order: SendOrder<Published>,
    /// The message for which the producer's queue had no space.
    unsent: Option<usize>,
    unconfirmed: FuturesUnordered<BoxFuture<'static, (usize, Option<OwnedDeliveryResult>)>>,
}

impl Call<'_> {
    fn topic(&self, place: usize) -> String {
        topic_names::topic(&self.options.prefix, &self.messages[place].subject)
    }

    /// Sends until every message is answered, or the producer fails.
    async fn send(&mut self) -> Result<(), Failure> {
        let patience = self.options.publish_timeout();
        let mut deadline = Instant::now() + patience;
        loop {
            self.queue()?;
            if self.unconfirmed.is_empty() && self.unsent.is_none() {
                return Ok(());
            }
            let reported = timeout_at(deadline, async {
                if self.unconfirmed.is_empty() {
                    tokio::time::sleep(FULL_QUEUE_PAUSE).await;
                }
                self.unconfirmed.next().await
            });
            match reported.await {
                Ok(Some((place, report))) => {
                    if self.reported(place, report)? {
                        deadline = Instant::now() + patience;
                    }
                }
                Ok(None) if Instant::now() < deadline => {}
                _ => return Err(Failure::TimedOut),
            }
        }
    }

    /// Queues what may be sent now.
    fn queue(&mut self) -> Result<(), Failure> {
        while let Some(place) = self.unsent.take().or_else(|| self.order.next()) {
            if let Err(refused) = publish::check(&self.messages[place]) {
                self.order.answered(place, Err(refused));
                continue;
            }
            let topic = self.topic(place);
            let record = publish::record(&topic, &self.messages[place]);
            match self.producer.client.send_result(record) {
                Ok(report) => {
                    let report = async move { (place, report.await.ok()) };
                    self.unconfirmed.push(Box::pin(report));
                }
                Err((KafkaError::MessageProduction(Code::QueueFull), _)) => {
                    self.unsent = Some(place);
                    break;
                }
                Err((error, _)) => self.not_queued(place, &topic, error)?,
            }
        }
        Ok(())
    }

    /// The producer knows by itself that it can't send a message.
    fn not_queued(&mut self, place: usize, topic: &str, error: KafkaError) -> Result<(), Failure> {
        let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
        match errors::publish_error(topic, code, error) {
            error @ BrokerError::Unavailable { .. } => Err(self.failure(error)),
            error => {
                self.order.answered(place, Err(error));
                Ok(())
            }
        }
    }

    /// Why the producer can't go on. Messages that were queued behind a batch that failed are reported before it, or after.
    fn failure(&self, error: BrokerError) -> Failure {
        match self.producer.client.client().fatal_error() {
            Some((Code::GaplessGuarantee, _)) => Failure::Batch,
            _ => Failure::Producer(error),
        }
    }

    /// Records what became of a message. Returns whether it is published.
    fn reported(&mut self, place: usize, report: Option<OwnedDeliveryResult>) -> Result<bool, Failure> {
        let topic = self.topic(place);
        let error = match report {
            Some(Ok(delivery)) => {
                let published = self.producer.published(&topic, &delivery);
                self.order.answered(place, Ok(published));
                return Ok(true);
            }
            Some(Err((error, _))) => error,
            None => KafkaError::Canceled,
        };
        let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
        let error = errors::publish_error(&topic, code, error);
        match code {
            // Of the whole topic, and of nothing else.
            Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
                self.order.answered(place, Err(error));
                Ok(false)
            }
            _ if matches!(error, BrokerError::Unavailable { .. }) => Err(self.failure(error)),
            _ => Err(Failure::Batch),
        }
    }

    /// Stops the producer, and records what it has published all the same.
    async fn collect_reports(&mut self, failure: &Failure) {
        self.order.stop();
        let mut purge = PurgeConfig::default().queue();
        // Otherwise the brokers answer, and fewer messages are published again.
        if matches!(failure, Failure::TimedOut) {
            purge = purge.inflight();
        }
        let client = self.producer.client.clone();
        // It waits for librdkafka's threads.
        let _ = tokio::task::spawn_blocking(move || client.purge(purge)).await;
        while let Ok(Some((place, report))) = timeout(REPORT_TIMEOUT, self.unconfirmed.next()).await {
            if matches!(report, Some(Ok(_))) {
                let _ = self.reported(place, report);
            }
        }
    }

    /// Answers what the producer left.
    async fn resolve(&mut self, failure: Failure) {
        match failure {
            Failure::Batch => self.send_one_by_one().await,
            Failure::TimedOut => self.timed_out().await,
            Failure::Producer(error) => {
                tracing::warn!(%error, "a Kafka producer failed; the next publish creates another one");
                for place in self.order.unanswered() {
                    self.order.answered(place, Err(error.copied()));
                }
            }
        }
    }

    /// One message at a time, so that a refusal is of that message. What the time is too short for is left to the next call.
    async fn send_one_by_one(&mut self) {
        let deadline = Instant::now() + self.options.publish_timeout();
        let producer = ProducerCell::default();
        let left = self.order.unanswered();
        let mut order = SendOrder::new(left.iter().map(|place| &self.messages[*place]), Pipelining::One);
        while Instant::now() < deadline
            && let Some(place) = order.next()
        {
            let message = &self.messages[left[place]];
            order.answered(place, publish::publish(&producer, self.options, message).await);
        }
        for (place, answer) in left.into_iter().zip(order.finish()) {
            self.order.answered(place, answer);
        }
    }

    /// Asks the brokers why nothing was confirmed, once for each topic.
    async fn timed_out(&mut self) {
        let mut causes: BTreeMap<String, BrokerError> = BTreeMap::new();
        let mut unavailable: Option<BrokerError> = None;
        for place in self.order.unanswered() {
            let topic = self.topic(place);
            if unavailable.is_none() && !causes.contains_key(&topic) {
                let cause = publish::timed_out(&self.producer, topic.clone()).await;
                if matches!(cause, BrokerError::Unavailable { .. }) {
                    unavailable = Some(cause);
                } else {
                    causes.insert(topic.clone(), cause);
                }
            }
            if let Some(cause) = causes.get(&topic).or(unavailable.as_ref()) {
                self.order.answered(place, Err(cause.copied()));
            }
        }
    }
}
