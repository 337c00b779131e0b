//! The broker side: the trait of a broker, its sources and leases.

use std::{error::Error as StdError, fmt, future::Future, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    config::{ACK_WAIT, Config},
    contain::{Contained, Owned, contain},
    delivery::{Delivery, Message},
    handler::StartPosition,
};
use futures_util::future::BoxFuture;

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
mod status;
pub(crate) mod subject;

pub use status::SourceStatus;

/// A message broker, as the runtime uses it. Implement it to add a broker or to wrap one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a broker",
    note = "use `Embedded` (feature `embedded`), `Kafka` (feature `kafka`) or `Nats` (feature `nats`), or implement `Broker`"
)]
pub trait Broker: Send + Sync + 'static {
    /// Where the deliveries of one subscription come from.
    type Source: Source;

    /// The broker's name and version, for the start report, as in `embedded 0.1.0 (memory)`.
    fn describe(&self) -> impl Future<Output = Result<String, BrokerError>> + Send;

    /// Opens every subscription of the program, in the order given. A durable that isn't there is made.
    fn subscribe(
        &self,
        subscriptions: Vec<Subscription>,
    ) -> impl Future<Output = Result<Vec<Self::Source>, BrokerError>> + Send;

    /// Publishes a message; returns when the broker has it for good.
    fn publish(&self, message: Message) -> impl Future<Output = Result<Published, BrokerError>> + Send;

    /// The file that the broker occupies, if it is one.
    fn file(&self) -> Option<PathBuf> {
        None
    }
}

/// One handler's wish for deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscription {
    /// The consumer group; with the subject it names the durable.
    pub group: String,
    /// The subject, which may have wildcards.
    pub subject: String,
    /// Where a group that isn't known yet begins.
    pub start: StartPosition,
    /// Whether the database has records of the group. A place that the broker doesn't have is lost then, not new: `start = "new"`
    /// would skip what came meanwhile.
    pub known: bool,
    /// How long a delivery stays leased without a sign of life.
    pub ack_wait: Duration,
    /// How many deliveries may be out at a time.
    pub max_in_flight: usize,
    /// How long the handler may take, after which nobody keeps the delivery's lease alive.
    pub timeout: Duration,
    /// The stream that holds the subject, for a broker that has streams. `None`: the broker finds it by the subject.
    pub stream: Option<String>,
    /// Whether a message may be delivered only after the one before it is settled, redeliveries included.
    pub ordered: bool,
    /// Whether a message that was handled before is detected by its claim (default true). Where it isn't, it is handled again: a broker
    /// that commits acknowledgements later commits them sooner.
    pub claims: bool,
}

impl Subscription {
    /// A subscription with the defaults: from the first message, leases of 30 s, one delivery at a time.
    #[must_use]
    pub fn new(group: impl Into<String>, subject: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            subject: subject.into(),
            start: StartPosition::First,
            known: false,
            ack_wait: ACK_WAIT,
            max_in_flight: 1,
            timeout: Duration::from_secs(300),
            stream: None,
            ordered: false,
            claims: true,
        }
    }

    /// Sets where a new group begins.
    #[must_use]
    pub fn start(mut self, start: StartPosition) -> Self {
        self.start = start;
        self
    }

    /// Sets whether the database has records of the group.
    #[must_use]
    pub fn known(mut self, known: bool) -> Self {
        self.known = known;
        self
    }

    /// Sets how long a delivery stays leased.
    #[must_use]
    pub fn ack_wait(mut self, ack_wait: Duration) -> Self {
        self.ack_wait = ack_wait;
        self
    }

    /// Sets how many deliveries may be out at a time.
    #[must_use]
    pub fn max_in_flight(mut self, max: usize) -> Self {
        self.max_in_flight = max;
        self
    }

    /// Sets how long the handler may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Names the stream that holds the subject.
    #[must_use]
    pub fn stream(mut self, stream: Option<String>) -> Self {
        self.stream = stream;
        self
    }

    /// Sets whether a message that was handled before is detected by its claim.
    #[must_use]
    pub fn claims(mut self, claims: bool) -> Self {
        self.claims = claims;
        self
    }

    /// Sets whether each message waits until the one before it is settled.
    #[must_use]
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }
}

/// Where the deliveries of one subscription come from.
pub trait Source: Send + 'static {
    /// What settles a delivery of this source.
    type Lease: Lease;

    /// Waits for deliveries: returns as soon as there is one, with at most `max`, or with none after `wait`. A `wait` of
    /// zero takes what is ready.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: a delivery that was taken from the broker and not returned is returned by the next call.
    fn pull(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<(Delivery, Self::Lease)>, BrokerError>> + Send;

    /// Gives back at once what was taken from the broker and never returned. Nothing is pulled afterwards.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// How long the lease of a delivery lasts; progress is reported at a third of it.
    fn ack_wait(&self) -> Duration;

    /// How long a pull must have found nothing before the source counts as idle.
    fn idle_after(&self) -> Duration {
        Duration::ZERO
    }

    /// What it says about itself beside its deliveries, for health and metrics.
    fn status(&self) -> SourceStatus {
        SourceStatus::default()
    }
}

/// A delivery that is out. Dropped without a word, it is redelivered when its lease runs out.
pub trait Lease: Send + Sync + 'static {
    /// Settles the message as done.
    fn ack(&self) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Settles, as [`ack`](Self::ack) does, a message that was done when it was delivered, or may have been: only an earlier
    /// acknowledgement was lost. A broker that doesn't count deliveries learns from it that the message behind may have been delivered before as
    /// well.
    fn ack_again(&self) -> impl Future<Output = Result<(), BrokerError>> + Send {
        self.ack()
    }

    /// Settles the message as done before it is; returns when the broker has confirmed that it is so for good. Fails with
    /// [`BrokerError::LeaseLost`] when the lease has passed to somebody else, who may be at it.
    fn ack_confirmed(&self) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Naks the message, which is redelivered after `delay`. Does nothing when the lease has passed to somebody else.
    fn nak(&self, delay: Duration) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Says that the message is still being handled: the lease starts again.
    fn progress(&self) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Whether the delivery is still ours, as far as this side knows: asked without waiting, just before a handler begins. One that
    /// is not is released and not handled: somebody else has it, or is about to.
    fn is_ours(&self) -> bool {
        true
    }

    /// Waits until the broker has confirmed the acknowledgements of what came before this delivery and would be delivered again with
    /// it. Asked before a message is handled that may have killed a process, so that its next crash repeats nothing else. For
    /// brokers whose [`ack`](Self::ack) returns before that.
    ///
    /// # Errors
    ///
    /// When it can't be confirmed now; the message is handled all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the acknowledgements are confirmed a moment later.
    fn confirm_earlier(&self) -> impl Future<Output = Result<(), BrokerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The delivery after this one, for brokers that deliver none of its partition before this one is settled. A worker
    /// prefetches it, to handle it as soon as this one is acknowledged; if this one is nakked, that one is dropped.
    fn next_in_partition(&self) -> Option<(Delivery, Self)>
    where
        Self: Sized,
    {
        None
    }
}

/// The broker's word that it has a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Where it keeps the message.
    pub position: String,
    /// Whether it took the message for a copy of an earlier one and keeps none.
    pub duplicate: bool,
}

impl Published {
    /// A message that the broker keeps at `position`.
    #[must_use]
    pub fn new(position: impl Into<String>) -> Self {
        Self {
            position: position.into(),
            duplicate: false,
        }
    }
}

/// Trouble with the broker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The broker can't be used now; it is tried again.
    #[error("the broker is not available: {message}")]
    Unavailable {
        /// What was tried.
        message: String,
        /// Why it failed.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The broker refuses this message and would again: it is too large, its subject, key or a header is not allowed, or the
    /// right to publish to its subject is missing.
    #[error("the broker refused the message: {message}")]
    Refused {
        /// What it refused, and what to do instead.
        message: String,
        /// The broker's own words.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The broker can't take the message now, though it answers: its stream has no leader, or is full and discards nothing.
    #[error("the broker can't take the message now: {message}")]
    NotNow {
        /// What was tried.
        message: String,
        /// The broker's own words.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The lease of a delivery has passed on: the message was delivered to somebody else again, or is settled.
    #[error("the lease of {position} has passed on: the message was delivered again, or is settled")]
    LeaseLost {
        /// Where the broker keeps the message.
        position: String,
    },
    /// What was asked is wrong and stays wrong.
    #[error("{0}")]
    Invalid(String),
    /// The broker's client has come to its end, as when somebody else has taken its place: only a new start helps. A running
    /// inbox finishes what it has fetched and ends with this.
    #[error("{0}")]
    Ended(String),
}

impl BrokerError {
    /// A failure that may pass.
    #[must_use]
    pub fn unavailable(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Unavailable {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A message that the broker doesn't take and never will.
    #[must_use]
    pub fn refused(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Refused {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A message that the broker may take later.
    #[must_use]
    pub fn not_now(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::NotNow {
            message: message.into(),
            source: Some(source.into()),
        }
    }
}

/// A URL, for texts that ask for one.
pub(crate) const EXAMPLE_URL: &str = "embedded:broker.db";

/// The broker that a URL names, which was found at `place`. The errors say what to write instead, and where.
pub(crate) fn connect(url: &str, place: &str, config: &Config) -> Result<DynBroker, Vec<String>> {
    #[cfg(feature = "kafka")]
    if let Some(rest) = url.strip_prefix("kafka:") {
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        return kafka::Kafka::from_url(rest, place, &config.kafka).map(DynBroker::new);
    }
    warn_unused_kafka(config, "the broker is none of Kafka's");
    other(url).map_err(|problem| vec![format!("{place}: {problem}")])
}

/// Warns of properties of librdkafka that nothing uses.
pub(crate) fn warn_unused_kafka(config: &Config, why: &str) {
    if !config.kafka.is_empty() {
        let places: Vec<_> = config.kafka.values().map(|given| given.place.as_str()).collect();
        tracing::warn!(places = places.join(", "), why, "properties of Kafka are not used");
    }
}

/// The broker of another URL than Kafka's; a line for each that is compiled in.
fn other(url: &str) -> Result<DynBroker, String> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    match scheme {
        #[cfg(feature = "embedded")]
        "embedded" => embedded::Embedded::from_url(url).map(DynBroker::new),
        #[cfg(feature = "nats")]
        "nats" | "tls" => match nats::Nats::new(url) {
            Ok(broker) => Ok(DynBroker::new(broker)),
            Err(error) => Err(error.to_string()),
        },
        _ => {
            // The rest of the URL may have a password.
            let _ = rest;
            let built_in: &[&str] = &[
                #[cfg(feature = "embedded")]
                "embedded",
                #[cfg(feature = "kafka")]
                "kafka",
                #[cfg(feature = "nats")]
                "nats",
            ];
            let beginning = match crate::url::scheme(url) {
                Some(scheme) => format!("begins with `{scheme}:`, which this program was not built for"),
                None => "has no scheme".to_owned(),
            };
            Err(format!(
                "the broker's URL {beginning}; built in: {}; turn on the feature of that broker, or write for example \
                 {EXAMPLE_URL}",
                if built_in.is_empty() {
                    "none".to_owned()
                } else {
                    built_in.join(", ")
                }
            ))
        }
    }
}

/// A broker behind `dyn`, as the pipeline holds it.
#[derive(Clone)]
pub(crate) struct DynBroker(Arc<dyn ErasedBroker>);

impl DynBroker {
    pub(crate) fn new(broker: impl Broker) -> Self {
        Self(Arc::new(broker))
    }

    pub(crate) async fn describe(&self) -> Result<String, BrokerError> {
        self.0.describe().await
    }

    pub(crate) async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<DynSource>, BrokerError> {
        self.0.subscribe(subscriptions).await
    }

    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.0.file()
    }
}

impl fmt::Debug for DynBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynBroker").finish_non_exhaustive()
    }
}

/// A source behind `dyn`.
pub(crate) type DynSource = Box<dyn ErasedSource>;
/// A lease behind `dyn`.
pub(crate) type DynLease = Arc<dyn ErasedLease>;

trait ErasedBroker: Send + Sync {
    fn describe(&self) -> BoxFuture<'_, Result<String, BrokerError>>;
    fn subscribe(&self, subscriptions: Vec<Subscription>) -> BoxFuture<'_, Result<Vec<DynSource>, BrokerError>>;
    fn file(&self) -> Option<PathBuf>;
}

impl<B: Broker> ErasedBroker for B {
    fn describe(&self) -> BoxFuture<'_, Result<String, BrokerError>> {
        contained("describe", async move { Broker::describe(self).await })
    }

    fn subscribe(&self, subscriptions: Vec<Subscription>) -> BoxFuture<'_, Result<Vec<DynSource>, BrokerError>> {
        contained("subscribe", async move {
            let sources = Broker::subscribe(self, subscriptions).await?;
            Ok(sources
                .into_iter()
                .map(|source| Box::new(Owned::new("a source of the broker", source)) as DynSource)
                .collect())
        })
    }

    fn file(&self) -> Option<PathBuf> {
        Broker::file(self)
    }
}

pub(crate) trait ErasedSource: Send {
    fn pull(&mut self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<(Delivery, DynLease)>, BrokerError>>;
    fn close(&mut self) -> BoxFuture<'_, ()>;
    fn ack_wait(&self) -> Duration;
    fn idle_after(&self) -> Duration;
    fn status(&self) -> SourceStatus;
}

impl<S: Source> ErasedSource for Owned<S> {
    fn pull(&mut self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<(Delivery, DynLease)>, BrokerError>> {
        contained("pull", async move {
            let deliveries = S::pull(self, max, wait).await?;
            Ok(deliveries
                .into_iter()
                .map(|(delivery, lease)| (delivery, erased(lease)))
                .collect())
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        let close = contained("close", async move {
            S::close(self).await;
            Ok(())
        });
        Box::pin(async move {
            if let Err(error) = close.await {
                tracing::warn!(%error, "a source of the broker could not be closed");
            }
        })
    }

    fn ack_wait(&self) -> Duration {
        said("ack_wait", || S::ack_wait(self)).unwrap_or(ACK_WAIT)
    }

    fn idle_after(&self) -> Duration {
        said("idle_after", || S::idle_after(self)).unwrap_or_default()
    }

    fn status(&self) -> SourceStatus {
        said("status", || S::status(self)).unwrap_or_default()
    }
}

pub(crate) trait ErasedLease: Send + Sync {
    fn ack(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn ack_again(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn ack_confirmed(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn nak(&self, delay: Duration) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn progress(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn is_ours(&self) -> bool;
    fn confirm_earlier(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
    fn next_in_partition(&self) -> Option<(Delivery, DynLease)>;
}

impl<L: Lease> ErasedLease for Owned<L> {
    fn ack(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("ack", async move { L::ack(self).await })
    }

    fn ack_again(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("ack_again", async move { L::ack_again(self).await })
    }

    fn ack_confirmed(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("ack_confirmed", async move { L::ack_confirmed(self).await })
    }

    fn nak(&self, delay: Duration) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("nak", async move { L::nak(self, delay).await })
    }

    fn progress(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("progress", async move { L::progress(self).await })
    }

    fn is_ours(&self) -> bool {
        said("is_ours", || L::is_ours(self)).unwrap_or(true)
    }

    fn confirm_earlier(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        contained("confirm_earlier", async move { L::confirm_earlier(self).await })
    }

    fn next_in_partition(&self) -> Option<(Delivery, DynLease)> {
        let (delivery, lease) = said("next_in_partition", || L::next_in_partition(self)).flatten()?;
        Some((delivery, erased(lease)))
    }
}

/// A lease behind `dyn`.
pub(crate) fn erased(lease: impl Lease) -> DynLease {
    Arc::new(Owned::new("the lease of a delivery", lease))
}

/// A call of a broker, whose panic is an error like any other: it is tried again, and what is handled meanwhile goes on.
fn contained<'a, T: 'a>(
    call: &'static str,
    future: impl Future<Output = Result<T, BrokerError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, BrokerError>> {
    let future = Contained::new("a future of the broker", Box::pin(future));
    Box::pin(async move {
        match future.await {
            Ok(answer) => answer,
            Err(panic) => Err(BrokerError::Unavailable {
                message: panicked(call, &panic),
                source: None,
            }),
        }
    })
}

/// What a broker says; `None` when it panics.
fn said<T>(call: &'static str, ask: impl FnOnce() -> T) -> Option<T> {
    contain(ask)
        .map_err(|panic| tracing::error!("the broker: {}", panicked(call, &panic)))
        .ok()
}

fn panicked(call: &'static str, panic: &str) -> String {
    format!("its `{call}` panicked: {panic}")
}
