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
