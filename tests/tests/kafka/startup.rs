//! Starting: new groups, topics that don't exist yet, lost offsets, wildcards.

use std::time::Duration;

use inbox_runtime::{Error, Inbox, Outcome};
use inbox_tests::{Order, TestBroker, TestDatabase, eventually, next, nothing_more};

use super::{KafkaWorld, stop, wait_for_reason, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_f69_a_new_group_starts_where_its_handler_says() {
    let world = KafkaWorld::new().await;
    for id in ["m1", "m2"] {
        world.publish(id).await;
    }
    // Each group name is a group of its own.
    for group in ["billing", "shipping"] {
        let mut inbox = world.inbox(&[group]).await;
        for _ in 0..2 {
            assert_eq!(next(&mut inbox).await, Outcome::Processed, "{group}");
        }
    }
    // `start = "new"`.
    let mut newest = world.inbox(&["newest"]).await;
    nothing_more(&mut newest).await;
    assert!(world.settled("newest").await, "the start offset is committed");
    drop(newest);
    // Messages published while no member runs are not lost, nor those of a partition that is added.
    world.publish("m3").await;
    world.broker.grow_topic("order.created", 2).await;
    let order = Order::new("o").to("order.created").id("m4");
    world.broker.publish_to(order, 1).await;
    let mut newest = world.inbox(&["newest"]).await;
    for _ in 0..2 {
        assert_eq!(next(&mut newest).await, Outcome::Processed);
    }
    for (id, runs) in [("m1", 0), ("m2", 0), ("m3", 1), ("m4", 1)] {
        assert_eq!(world.probe.runs("newest", id), runs, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f68_f69_topics_and_partitions_that_come_later_are_found() {
    let world = KafkaWorld::new().await;
    world.broker.create_topic("pair.here", 1).await;
    let inbox = Inbox::builder()
        .store(world.database.pool())
        .broker(world.broker.connect())
        .state(world.probe.clone())
        .groups(["pair"])
        .spawn()
        .await
        .expect("an inbox");
    let missing = format!("there is no topic `{}pair.later`", world.broker.prefix());
    wait_for_reason(&inbox, &missing).await;
    // A missing topic blocks no other one.
    world.publish_to("pair.here", "m1").await;
    eventually("m1 is handled", async || world.probe.runs("pair", "m1") == 1).await;
    world.publish_to("pair.later", "m2").await;
    eventually("m2 is handled", async || world.probe.runs("pair", "m2") == 1).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    world.broker.grow_topic("pair.here", 3).await;
    let order = Order::new("o").to("pair.here").id("m3");
    world.broker.publish_to(order, 2).await;
    eventually("m3 is handled", async || world.probe.runs("pair", "m3") == 1).await;
    stop(inbox).await;
}

/// Kafka has lost the group's offsets; the database has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_lost_offsets_redeliver_everything_and_repeat_no_effect() {
    let world = KafkaWorld::new().await;
    for id in ["m1", "m2", "m3"] {
        world.publish(id).await;
    }
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("everything is settled", || world.settled("billing")).await;
    stop(inbox).await;
    world.broker.delete_group("billing").await;
    assert_eq!(world.broker.committed("billing", "order.created").await, [None]);
    let mut inbox = world.inbox(&["billing"]).await;
    for id in ["m1", "m2", "m3"] {
        assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
        world.assert_done("billing", id).await;
    }
    assert!(world.settled("billing").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_properties_that_break_the_guarantee_are_start_errors() {
    for (name, value, expected) in [
        ("enable.auto.commit", "true", "after the transaction"),
        ("enable.auto.offset.store", "true", "after the transaction"),
        ("auto.offset.reset", "latest", "start = \"new\""),
        ("group.id", "mine", "group = "),
        ("sesion.timeout.ms", "1", "sesion.timeout.ms"),
    ] {
        let world = world(move |kafka| kafka.property(name, value)).await;
        let built = world.builder(&["billing"]).build().await;
        let Err(Error::Broker(error)) = built else {
            panic!("{name}: {built:?}");
        };
        let error = error.to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wildcards_match_new_topics_and_no_internal_ones() {
    let world = KafkaWorld::new().await;
    world.publish("m1").await;
    // `__consumer_offsets` exists by now.
    let mut inbox = world.inbox(&["audit"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.publish_to("order.paid", "m2").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    inbox.run_until_idle().await.expect("the broker");
    let kafka = inbox_runtime::Kafka::new(inbox_tests::servers::kafka::Shared::get().brokers());
    use inbox_runtime::{Broker, Source, Subscription};
    let group = format!("{}everything", world.broker.prefix());
    let mut sources = kafka
        .subscribe(vec![Subscription::new(group, ">").max_in_flight(1000)])
        .await
        .expect("a source");
    let deliveries = sources[0].pull(1000, Duration::from_secs(5)).await.expect("deliveries");
    assert!(!deliveries.is_empty());
    for (delivery, _) in &deliveries {
        assert!(!delivery.subject.starts_with("__"), "{}", delivery.subject);
    }
    sources[0].close().await;
}
