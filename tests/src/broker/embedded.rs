//! The embedded broker, in a file and in memory.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{Embedded, Message};
use tempfile::TempDir;

use super::{Settled, TestBroker};

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
