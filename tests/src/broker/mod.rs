//! Brokers for tests, each of which reports what is settled.

use std::time::Duration;

use inbox_runtime::{Broker, Message};

mod embedded;
#[cfg(feature = "nats")]
mod jetstream;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;

pub use embedded::{EmbeddedFile, EmbeddedMemory};
#[cfg(feature = "nats")]
pub use jetstream::JetStream;
#[cfg(feature = "kafka")]
pub use kafka::KafkaCluster;
#[cfg(feature = "nats")]
pub use nats::NatsJetStream;

/// What the broker itself says about a group's messages on a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Not delivered yet.
    pub waiting: u64,
    /// Delivered or nak'ed, and not acknowledged.
    pub unacked: u64,
}

impl Settled {
    /// Everything is acknowledged.
    pub const ALL: Self = Self { waiting: 0, unacked: 0 };
}

/// A broker for one test.
#[allow(async_fn_in_trait, reason = "the tests name the types")]
pub trait TestBroker: Clone + Send + Sync + 'static {
    /// What the runtime is given.
    type Broker: Broker + Clone;

    /// Whether a payload and a header can be null.
    const NULLS: bool = true;
    /// Whether spaces around the value of a header get lost.
    const TRIMS: bool = false;
    /// How long the value of a header may be, in bytes.
    const LONGEST_HEADER: usize = usize::MAX;

    /// Whether it counts the deliveries of a message.
    const COUNTS: bool = true;

    /// Whether it has an acknowledgement when the call returns. Otherwise it has it a moment later, or never if the process
    /// dies in that.
    const ACKS_AT_ONCE: bool = true;

    /// Whether a message that is not settled goes to another consumer when a lease runs out, and not before.
    const LEASES: bool = true;

    /// The time between two kills of its consumers that leaves them time to work.
    const KILLS: Duration = Duration::from_millis(300);

    /// A broker with nothing on it.
    async fn fresh() -> Self;

    /// A connection to it, as another process would have one where the broker outlives a process.
    fn connect(&self) -> Self::Broker;

    /// Lets messages of a subject be handled several at a time, where their order would keep them from that. Before the
    /// first is published.
    async fn spread(&self, subject: &str) {
        let _ = subject;
    }

    /// Publishes a message.
    async fn publish(&self, message: Message);

    /// What is settled; `None` if the group is not known.
    async fn settled(&self, group: &str, subject: &str) -> Option<Settled>;

    /// Its URL, for another process; `None` if no other process can reach it.
    fn url(&self) -> Option<String>;

    /// What else another process must have in its environment.
    fn variables(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What lets another process take the place of the one before it of that name, where the broker would wait for that one.
    fn member(&self, name: &str) -> Vec<(String, String)> {
        let _ = name;
        Vec::new()
    }

    /// Lets time pass on the broker, so that leases run out and what waits for its back-off comes: by its test clock where
    /// it has one.
    async fn pass(&self, time: Duration);
}
