//! Brokers for tests, each with its own word on what is settled.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{Broker, Embedded, Message};
use tempfile::TempDir;

/// What the broker itself says about a group's messages on a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Not delivered yet.
    pub waiting: u64,
    /// Delivered, or given back, and not acknowledged.
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

    /// A broker with nothing on it.
    async fn fresh() -> Self;

    /// A connection to it, as another process would have one where the broker outlives a process.
    fn connect(&self) -> Self::Broker;

    /// Publishes a message.
    async fn publish(&self, message: Message);

    /// What is settled; `None` if the group is not known.
    async fn settled(&self, group: &str, subject: &str) -> Option<Settled>;

    /// Its URL, for another process; `None` if no other process can reach it.
    fn url(&self) -> Option<String>;

    /// Lets time pass on the broker: by its test clock where it has one, else by waiting.
    async fn pass(&self, time: Duration);
}

/// The embedded broker in a file.
#[derive(Clone, Debug)]
pub struct EmbeddedFile {
    folder: Arc<TempDir>,
    broker: Embedded,
}

impl EmbeddedFile {
    /// The file that it is in.
    #[must_use]
    pub fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("broker.db")
    }
}

impl TestBroker for EmbeddedFile {
    type Broker = Embedded;

    async fn fresh() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let broker = Embedded::file(folder.path().join("broker.db"));
        Self { folder, broker }
    }

    fn connect(&self) -> Embedded {
        self.broker.clone()
    }

    async fn publish(&self, message: Message) {
        self.broker.publish(message).await.expect("published");
    }

    async fn settled(&self, group: &str, subject: &str) -> Option<Settled> {
        settled(&self.broker, group, subject).await
    }

    fn url(&self) -> Option<String> {
        Some(format!("embedded:{}", self.path().display()))
    }

    async fn pass(&self, time: Duration) {
        self.broker.advance_clock(time);
    }
}

/// The embedded broker in memory.
#[derive(Clone, Debug)]
pub struct EmbeddedMemory(Embedded);

impl TestBroker for EmbeddedMemory {
    type Broker = Embedded;

    async fn fresh() -> Self {
        Self(Embedded::memory())
    }

    fn connect(&self) -> Embedded {
        self.0.clone()
    }

    async fn publish(&self, message: Message) {
        self.0.publish(message).await.expect("published");
    }

    async fn settled(&self, group: &str, subject: &str) -> Option<Settled> {
        settled(&self.0, group, subject).await
    }

    fn url(&self) -> Option<String> {
        None
    }

    async fn pass(&self, time: Duration) {
        self.0.advance_clock(time);
    }
}

async fn settled(broker: &Embedded, group: &str, subject: &str) -> Option<Settled> {
    let info = broker.consumer(group, subject).await.expect("the broker's state")?;
    Some(Settled {
        waiting: info.waiting,
        unacked: info.ack_pending,
    })
}
