//! What is Kafka's own: records, offsets, partitions, members that come and go, and brokers that are gone.

use std::time::Duration;

use inbox_runtime::{InboxHandle, Kafka};
use inbox_tests::{Flaky, KafkaCluster, Probe, SqliteFile, TestBroker, TestDatabase, World, eventually};

mod anew;
mod campaign;
mod client;
mod ends;
mod handlers;
mod leaders;
mod memory;
mod names;
mod outages;
mod partitions;
mod places;
mod rebalances;
mod records;
mod rights;
mod secure;
mod start;
#[cfg(feature = "postgres")]
mod successors;
#[cfg(feature = "kafka-ssl")]
mod tokens;

type Kafkaesque = World<KafkaCluster, SqliteFile>;

/// A world on topics of the test's own, with a broker that `set` has changed.
async fn world(set: impl FnOnce(Kafka) -> Kafka + Send + 'static) -> Kafkaesque {
    let cluster = tokio::task::spawn_blocking(|| {
        let brokers = inbox_tests::servers::kafka::Shared::get().brokers();
        KafkaCluster::with(&brokers, set)
    });
    on(cluster.await.expect("a server")).await
}

async fn on<D: TestDatabase>(broker: KafkaCluster) -> World<KafkaCluster, D> {
    World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database: D::fresh().await,
        probe: Probe::default(),
    }
}

async fn stop(inbox: InboxHandle) {
    inbox.stop();
    let ended = tokio::time::timeout(Duration::from_secs(20), inbox.join()).await;
    ended.expect("an end in time").expect("a clean end");
}

/// Waits until a text is among the reasons for which an inbox isn't ready.
async fn says(inbox: &InboxHandle, text: &str) {
    eventually(text, async || {
        inbox.health().reasons.iter().any(|reason| reason.contains(text))
    })
    .await;
}
