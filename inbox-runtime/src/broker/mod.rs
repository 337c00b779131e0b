//! The broker side: the trait of a broker, its sources and leases.

use std::{future::Future, path::PathBuf, time::Duration};

use bytes::Bytes;

use self::send_order::{Pipelining, SendOrder};
use crate::delivery::{Delivery, Message};

mod drivers;
#[cfg(feature = "embedded")]
pub mod embedded;
mod erased;
mod error;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
mod send_order;
mod status;
pub(crate) mod subject;
mod subscription;

pub(crate) use drivers::{EXAMPLE_URL, connect, warn_unused};
pub(crate) use erased::{DynBroker, DynLease, DynSource, erased};
pub use error::BrokerError;
pub use status::SourceStatus;
pub use subscription::Subscription;

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

    /// Publishes messages, each after the one before it of the same subject and key. Returns what came of each, in the order
    /// given: exactly one result for each message.
    ///
    /// Messages of one subject and key are a *unit*; so are those of one subject that have no key. A message is on the broker only
    /// after all that were given before it in its unit, apart from those that ended with [`BrokerError::Refused`]. Units don't
    /// wait for each other. So that this holds:
    ///
    /// * After any other error of a message, the later ones of its unit are not sent in this call. They end with
    ///   [`BrokerError::NotNow`], or with the broker's error where it is the broker that keeps them back.
    /// * After [`BrokerError::Unavailable`] nothing more is sent where that is known; what wasn't sent ends with `Unavailable`, or
    ///   with `NotNow` if it waits for another message.
    /// * A message that failed may be on the broker all the same. Who calls again begins each unit with its first message that
    ///   is neither published nor refused, and in the same order: the broker then has copies, and no message before another one
    ///   that was given before it.
    ///
    /// A broker may order less: Kafka knows no order between the partitions of a topic, so none among messages without a key.
    ///
    /// By default the messages are published one after the other. Implement it where many can be on their way at a time.
    ///
    /// # Errors
    ///
    /// Those of [`publish`](Self::publish), for each message.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, some messages are published and others not, as after errors; never one before its predecessor.
    ///
    /// ```
    /// use inbox_runtime::{Broker, Embedded, Message};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let order = |id: &str, key: &str| Message::new("order.created", "{}").id(id.to_owned()).key(key.to_owned());
    /// let messages = vec![order("evt-1", "customer-7"), order("evt-2", "customer-7"), order("evt-3", "customer-8")];
    /// let results = Broker::publish_all(&Embedded::memory(), messages).await;
    /// assert!(results.len() == 3 && results.iter().all(Result::is_ok));
    /// # }
    /// ```
    fn publish_all(&self, messages: Vec<Message>) -> impl Future<Output = Vec<Result<Published, BrokerError>>> + Send {
        async move {
            let mut order = SendOrder::new(&messages, Pipelining::One);
            let mut messages: Vec<_> = messages.into_iter().map(Some).collect();
            while let Some(place) = order.next() {
                if let Some(message) = messages[place].take() {
                    order.answered(place, self.publish(message).await);
                }
            }
            order.finish()
        }
    }

    /// The largest payload that the broker takes, in bytes, as far as it is known now; `None` if there is no limit, or it isn't known
    /// yet. What is larger ends with [`BrokerError::Refused`]; what isn't may, too, where headers and key count, or a stream or topic
    /// allows less. Asked often, so it must not wait.
    fn max_payload(&self) -> Option<usize> {
        None
    }

    /// Whether the broker would take the message, as far as it is known now: asked before a handler's transaction with the message is
    /// committed, so that what is wrong with it is the handler's failure. It must not wait. What it lets pass may be refused all the
    /// same.
    ///
    /// # Errors
    ///
    /// Why not, and what to do instead.
    fn check(&self, message: &Message) -> Result<(), String> {
        let size = message.payload.as_ref().map_or(0, Bytes::len);
        match self.max_payload() {
            Some(max) if size > max => Err(format!(
                "its payload has {size} bytes, and the broker takes at most {max}"
            )),
            _ => Ok(()),
        }
    }

    /// The file that the broker occupies, if it is one.
    fn file(&self) -> Option<PathBuf> {
        None
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
