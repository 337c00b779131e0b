//! The brokers of the runtime pass the checks that a broker of your own is put to.

use inbox_runtime::testing::conformance::{BrokerRules, broker};
#[cfg(feature = "kafka")]
use inbox_tests::KafkaCluster;
#[cfg(feature = "nats")]
use inbox_tests::NatsJetStream;
use inbox_tests::{EmbeddedFile, EmbeddedMemory, TestBroker};
use tokio::sync::Mutex;

async fn conforms<B: TestBroker>() {
    let subject = "order.created";
    let rules = BrokerRules::default()
        .subject(subject)
        .leases(B::LEASES)
        .counts(B::COUNTS);
    // They last as long as their clients.
    let made = Mutex::new(Vec::new());
    let fresh = async || {
        let broker = B::fresh().await;
        broker.spread(subject).await;
        let client = broker.connect();
        made.lock().await.push(broker);
        client
    };
    broker(rules, fresh).await;
}

#[tokio::test]
async fn the_embedded_broker_in_memory() {
    conforms::<EmbeddedMemory>().await;
}

#[tokio::test]
async fn the_embedded_broker_in_a_file() {
    conforms::<EmbeddedFile>().await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn nats() {
    conforms::<NatsJetStream>().await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn kafka() {
    conforms::<KafkaCluster>().await;
}
