//! Partitions: their order, their offsets, and back-off of one while the others go on.

use std::time::Duration;

use inbox_runtime::{DeadLetterReason, Message, Outcome};
use inbox_tests::{Step, TestBroker, eventually, next};

use super::{KafkaWorld, stop, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f60_nothing_is_committed_past_a_failed_message() {
    let world = KafkaWorld::new().await;
    let ids: Vec<_> = (0..10).map(|number| format!("m{number}")).collect();
    for id in &ids {
        world.publish(id).await;
    }
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m3", 1) => Step::RetryAfter(Duration::from_secs(600)),
        _ => Step::Ok,
    });
    // Four workers.
    let inbox = world.builder(&["audit"]).spawn().await.expect("an inbox");
    eventually("m3 has failed", async || inbox.health().handlers[0].backing_off == 1).await;
    eventually("what was done is committed", async || {
        world.broker.committed("audit", "order.created").await == [Some(3)]
    })
    .await;
    assert_eq!(world.probe.total(), 4, "nothing overtakes the failed message");
    stop(inbox).await;
    assert_eq!(world.broker.committed("audit", "order.created").await, [Some(3)]);

    let inbox = world.builder(&["audit"]).spawn().await.expect("an inbox");
    eventually("everything is settled", || world.settled("audit")).await;
    stop(inbox).await;
    for id in &ids {
        world.assert_done("audit", id).await;
        assert_eq!(world.probe.runs("audit", id), if id == "m3" { 2 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_f66_g36_a_partition_that_backs_off_leaves_health_ready_and_the_others_go_on() {
    let world = KafkaWorld::new().await;
    world.broker.create_topic("pair.here", 3).await;
    world.broker.grow_topic("order.created", 3).await;
    let order = |id: &str| inbox_tests::Order::new("o").to("order.created").id(id.to_owned());
    for (partition, id) in [(0, "bad"), (0, "next"), (1, "a"), (2, "b")] {
        world.broker.publish_to(order(id), partition).await;
    }
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("bad", 1) => Step::RetryAfter(Duration::from_secs(600)),
        _ => Step::Ok,
    });
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("the bad one has failed", async || {
        inbox.health().handlers[0].backing_off == 1
    })
    .await;
    eventually("the others are done", async || {
        world.probe.runs("billing", "a") == 1 && world.probe.runs("billing", "b") == 1
    })
    .await;
    assert_eq!(world.probe.runs("billing", "next"), 0);
    // Shown, but not as a fault of the broker.
    assert!(inbox.health().ready, "{:?}", inbox.health());
    world.broker.pass(Duration::from_secs(601)).await;
    eventually("everything is settled", || world.settled("billing")).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    stop(inbox).await;
    assert_eq!(world.probe.runs("billing", "bad"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_a_poison_record_is_dead_lettered_and_the_rest_is_processed() {
    let world = KafkaWorld::new().await;
    for number in 0..20 {
        if number == 5 {
            world.broker.publish(Message::new("order.created", "{").id("m5")).await;
        } else {
            world.publish(&format!("m{number}")).await;
        }
    }
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.dead_lettered), (19, 1), "{report}");
    let letter = world.letter("billing").await;
    assert_eq!(
        (letter.reason, letter.payload.as_deref()),
        (DeadLetterReason::Rejected, Some(&b"{"[..]))
    );
    assert!(world.settled("billing").await);
}

/// Handlers may take longer than `max.poll.interval.ms`, asleep or blocking their thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_a_slow_handler_does_not_lose_its_partition() {
    let world = world(|kafka| kafka.property("max.poll.interval.ms", "2000")).await;
    world.broker.create_topic("order.created", 1).await;
    for id in ["asleep", "blocked", "last"] {
        world.publish(id).await;
    }
    world.probe.script(|call| match call.id.as_str() {
        "asleep" => Step::Sleep(Duration::from_millis(2500)),
        "blocked" => Step::Block(Duration::from_millis(2500)),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    for id in ["asleep", "blocked", "last"] {
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{id}");
        assert_eq!(world.probe.runs("billing", id), 1);
    }
    assert!(world.settled("billing").await);
}
