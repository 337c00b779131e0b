//! Messages from a Kafka topic of eight partitions.

use inbox_runtime::Kafka;
use inbox_tests::KafkaCluster;

use crate::{Error, Way};

/// The brokers of `KAFKA_BROKERS`.
pub(crate) struct Topic;

impl Way for Topic {
    const NAME: &'static str = "kafka";
    type Broker = Kafka;

    async fn filled(count: u64) -> Result<Option<Kafka>, Error> {
        let Ok(brokers) = std::env::var("KAFKA_BROKERS") else {
            return Ok(None);
        };
        let cluster = KafkaCluster::on(&brokers);
        cluster.fill("order.created", count).await;
        Ok(Some(Kafka::new(brokers).prefix(cluster.prefix())))
    }
}

/// A topic of one partition with nothing in it, if there is a server.
pub(crate) async fn empty(subject: &str) -> Option<Kafka> {
    let brokers = std::env::var("KAFKA_BROKERS").ok()?;
    let cluster = KafkaCluster::on(&brokers);
    cluster.create_topic(subject, 1).await;
    Some(Kafka::new(brokers).prefix(cluster.prefix()))
}
