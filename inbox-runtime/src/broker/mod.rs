//! The broker side: the trait of a broker, its sources and leases.

use std::{future::Future, path::PathBuf, time::Duration};

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
