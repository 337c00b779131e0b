//! Lag, and the end of a partition whose last records are no messages.

use std::sync::Arc;

use inbox_runtime::InboxHandle;
use inbox_tests::{Order, Step, eventually};
use tokio::sync::Semaphore;

use super::{KafkaWorld, stop, world};

fn order(id: &str) -> inbox_runtime::Message {
    Order::new("o").to("order.created").id(id.to_owned())
}

fn lag(inbox: &InboxHandle) -> Option<u64> {
    inbox.health().handlers[0].lag
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g37_control_records_at_the_end_are_committed() {
    let world = KafkaWorld::new().await;
    world.broker.publish_to(order("m1"), 0).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("m1 is settled", || world.settled("billing")).await;
    // Two records and the commit marker.
    let both = vec![order("m2"), order("m3")];
    world.broker.publish_in_transaction(both, true).await;
    let committed = async || world.broker.committed("billing", "order.created").await;
    eventually("the transaction is settled", async || committed().await == [Some(4)]).await;
    // Two records and the abort marker.
    let both = vec![order("never"), order("neither")];
    world.broker.publish_in_transaction(both, false).await;
    eventually("the aborted one is skipped", async || committed().await == [Some(7)]).await;
    eventually("nothing is left", async || lag(&inbox) == Some(0)).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    stop(inbox).await;
    for id in ["m1", "m2", "m3"] {
        world.assert_done("billing", id).await;
    }
    world.assert_untouched("billing", "never").await;
}

/// A new group on a partition with nothing but an aborted transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g37_a_partition_without_messages_is_committed_to_its_end() {
    let world = KafkaWorld::new().await;
    world.broker.publish_in_transaction(vec![order("never")], false).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("its end is committed", async || {
        world.broker.committed("billing", "order.created").await == [Some(2)]
    })
    .await;
    eventually("nothing is left", async || lag(&inbox) == Some(0)).await;
    stop(inbox).await;
    assert_eq!(world.probe.total(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g38_lag_is_what_the_group_has_not_acknowledged() {
    let world = KafkaWorld::new().await;
    world.broker.grow_topic("order.created", 2).await;
    for number in 0..20 {
        world.broker.publish_to(order(&format!("m{number}")), number % 2).await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |_| Step::Gate(wait.clone()));
    let first = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("the lag of a new group is everything", async || lag(&first) == Some(20)).await;
    let second = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("each process reports the group's lag", async || {
        lag(&first) == Some(20) && lag(&second) == Some(20)
    })
    .await;
    gate.add_permits(8);
    // A message in flight during the rebalance may have run twice, on either of the two.
    eventually("eight are acknowledged", async || {
        lag(&first).is_some_and(|lag| (12..=14).contains(&lag)) && lag(&second) == lag(&first)
    })
    .await;
    gate.add_permits(1000);
    eventually("none is left", async || {
        lag(&first) == Some(0) && lag(&second) == Some(0)
    })
    .await;
    stop(second).await;
    stop(first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g38_removed_records_are_no_lag() {
    let world = KafkaWorld::new().await;
    for number in 0..5 {
        world.broker.publish_to(order(&format!("m{number}")), 0).await;
    }
    world.broker.delete_records("order.created", 0, 5).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("there is nothing", async || lag(&inbox) == Some(0)).await;
    stop(inbox).await;
}

/// The only partition is assigned to another member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g36_a_member_without_a_partition_is_ready() {
    for protocol in ["consumer", "classic"] {
        let world = world(move |kafka| {
            let kafka = kafka.property("group.protocol", protocol);
            match protocol {
                // Broker settings, with this protocol.
                "consumer" => kafka
                    .property("session.timeout.ms", "")
                    .property("heartbeat.interval.ms", ""),
                _ => kafka,
            }
        })
        .await;
        world.broker.create_topic("order.created", 1).await;
        let first = world.builder(&["billing"]).spawn().await.expect("an inbox");
        let second = world.builder(&["billing"]).spawn().await.expect("an inbox");
        eventually("both are ready", async || first.health().ready && second.health().ready).await;
        world.publish("m1").await;
        eventually("m1 is settled", || world.settled("billing")).await;
        assert!(first.health().ready && second.health().ready, "{protocol}");
        stop(first).await;
        stop(second).await;
    }
}
