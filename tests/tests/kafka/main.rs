//! What only Kafka has: records, offsets, partitions, rebalances, authentication.

use std::time::Duration;

use inbox_runtime::{InboxHandle, Kafka};
use inbox_tests::{Flaky, KafkaCluster, Probe, SqliteFile, TestBroker, TestDatabase, World, eventually};

mod authentication;
mod clients;
mod cluster;
mod handlers;
mod header_names;
mod kill_campaign;
mod lag;
mod leaderless_partitions;
#[cfg(feature = "kafka-ssl")]
mod oauth;
mod outages;
mod partitions;
#[cfg(feature = "postgres")]
mod prefetch;
mod publish_all;
mod rebalances;
mod records;
mod recreated_topics;
mod resources;
mod revoked_permission;
mod start_offsets;
mod startup;

type KafkaWorld = World<KafkaCluster, SqliteFile>;

/// A world with topics of its own, whose broker `set` has configured.
async fn world(set: impl FnOnce(Kafka) -> Kafka + Send + 'static) -> KafkaWorld {
    let cluster = tokio::task::spawn_blocking(|| {
        let brokers = inbox_tests::servers::kafka::Shared::get().brokers();
        KafkaCluster::with(&brokers, set)
    });
    world_on(cluster.await.expect("a server")).await
}

async fn world_on<D: TestDatabase>(broker: KafkaCluster) -> World<KafkaCluster, D> {
    World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database: D::fresh().await,
        probe: Probe::default(),
    }
}

/// Stops an inbox, which ends cleanly within two minutes.
async fn stop(inbox: InboxHandle) {
    inbox.stop();
    let ended = tokio::time::timeout(Duration::from_mins(2), inbox.join()).await;
    ended.expect("an end in time").expect("a clean end");
}

/// Waits until one of the reasons why an inbox isn't ready has that text.
async fn wait_for_reason(inbox: &InboxHandle, text: &str) {
    eventually(text, async || {
        inbox.health().reasons.iter().any(|reason| reason.contains(text))
    })
    .await;
}
