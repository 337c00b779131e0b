//! A group loses the permission to read one of its topics: the others are not affected.

use std::time::Duration;

use inbox_runtime::{Broker, Kafka, Lease, Source, Subscription};
use inbox_tests::{
    KafkaCluster, Order, SqliteFile, eventually,
    servers::{
        acl::{Operation, Resource, grant, revoke},
        kafka::{self, USER},
    },
};

use super::world_on;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g14_a_topic_without_read_permission_fails_no_other() {
    let server = tokio::task::spawn_blocking(kafka::Kafka::start_secure)
        .await
        .expect("it ends")
        .expect("a server");
    let world = world_on::<SqliteFile>(KafkaCluster::on(&server.brokers())).await;
    let kafka = Kafka::new(server.sasl_brokers())
        .prefix(world.broker.prefix())
        .property("security.protocol", "sasl_plaintext")
        .property("sasl.mechanism", "PLAIN")
        .property("sasl.username", USER.0)
        .property("sasl.password", USER.1);
    let full = |name: &str| format!("{}{name}", world.broker.prefix());
    let (denied, free, group) = (full("pair.here"), full("pair.later"), full("pair"));
    for subject in ["pair.here", "pair.later"] {
        world.broker.create_topic(subject, 1).await;
        for id in ["m1", "m2"] {
            let order = Order::new("o").to(subject).id(id);
            world.broker.publish_to(order, 0).await;
        }
    }
    for resource in [
        Resource::Topic(&denied),
        Resource::Topic(&free),
        Resource::Group(&group),
    ] {
        grant(server.port(), USER.0, resource, Operation::Read);
    }
    let subscriptions = ["pair.here", "pair.later"].map(|subject| Subscription::new("pair", subject));
    let mut sources = kafka.subscribe(subscriptions.to_vec()).await.expect("sources");
    let mut free_source = sources.pop().expect("two");
    let mut denied_source = sources.pop().expect("two");
    let wait = Duration::from_secs(20);
    let first = free_source.pull(1, wait).await.expect("a delivery").remove(0).1;
    let other = denied_source.pull(1, wait).await.expect("a delivery").remove(0).1;

    revoke(server.port(), USER.0, Resource::Topic(&denied), Operation::Read);
    // The acknowledgements of both are committed together.
    other.ack().await.expect("acknowledged");
    first
        .ack_confirmed()
        .await
        .expect("confirmed, though the other is refused");
    assert_eq!(world.broker.committed("pair", "pair.later").await, [Some(1)]);
    assert_eq!(world.broker.committed("pair", "pair.here").await, [None]);
    let second = free_source.pull(1, wait).await.expect("a delivery").remove(0).1;
    second.ack_confirmed().await.expect("confirmed again");
    eventually("health names the permission", async || {
        let reasons = denied_source.status().reasons();
        reasons
            .iter()
            .any(|reason| reason.contains("the offset of") && reason.contains("READ"))
    })
    .await;
    let reasons = free_source.status().reasons();
    assert!(reasons.is_empty(), "{reasons:?}");

    grant(server.port(), USER.0, Resource::Topic(&denied), Operation::Read);
    eventually("it is committed", async || {
        world.broker.committed("pair", "pair.here").await == [Some(1)]
    })
    .await;
    let next = denied_source.pull(1, wait).await.expect("a delivery").remove(0).1;
    next.ack_confirmed().await.expect("confirmed");
    // Health clears although no new record arrives.
    eventually("nothing is blocked", async || {
        denied_source.status().reasons().is_empty()
    })
    .await;
    free_source.close().await;
    denied_source.close().await;
}
