//! Topics that are deleted and recreated: new records at the offsets of the old ones.

use inbox_runtime::Outcome;
use inbox_tests::{Order, TestDatabase, eventually, next};

use super::{KafkaWorld, stop, world};

/// Publishes that many orders, with ids of that prefix.
async fn publish(world: &KafkaWorld, prefix: &str, count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count).map(|number| format!("{prefix}{number}")).collect();
    for id in &ids {
        let order = Order::new(format!("order-{id}")).to("order.created").id(id.clone());
        world.broker.publish_to(order, 0).await;
    }
    ids
}

/// A topic with `before` records is recreated while it is consumed, with `after` others. `refresh`: the consumer's
/// metadata refresh interval, in milliseconds.
async fn recreate_topic(before: usize, after: usize, refresh: &'static str) {
    let world = world(move |kafka| kafka.property("topic.metadata.refresh.interval.ms", refresh)).await;
    world.broker.create_topic("order.created", 1).await;
    publish(&world, "old", before).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("the old ones are settled", || world.settled("billing")).await;
    world.broker.delete_topic("order.created").await;
    world.broker.create_topic("order.created", 1).await;
    let ids = publish(&world, "new", after).await;
    eventually("the last one is handled", async || {
        world.probe.runs("billing", &ids[after - 1]) > 0
    })
    .await;
    eventually("the new ones are settled", || world.settled("billing")).await;
    stop(inbox).await;
    for id in &ids {
        world.assert_done("billing", id).await;
    }
    let committed = world.broker.committed("billing", "order.created").await;
    assert_eq!(committed, [Some(i64::try_from(after).expect("a few"))]);
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.duplicate), (0, 0), "{report}");
    inbox.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g12_progress_follows_a_recreated_topic() {
    recreate_topic(40, 30, "300").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g12_progress_follows_a_topic_that_is_recreated_at_once() {
    recreate_topic(40, 30, "60000").await;
}

/// librdkafka alone would continue at its old offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g12_a_topic_that_is_recreated_with_more_records_loses_none() {
    recreate_topic(10, 40, "60000").await;
}

/// Without an id header, new records have the ids (positions) of old ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_records_without_ids_run_when_their_topic_was_recreated() {
    for running in [false, true] {
        let world = KafkaWorld::new().await;
        let order = |text: &str| Order::new(text).to("order.created");
        for text in ["a", "b"] {
            world.broker.publish_to(order(text), 0).await;
        }
        let mut inbox = world.inbox(&["by-position"]).await;
        for _ in 0..2 {
            assert_eq!(next(&mut inbox).await, Outcome::Processed);
        }
        let mut inbox = Some(inbox);
        if let Some(inbox) = inbox.take_if(|_| !running) {
            inbox.close().await;
        }
        world.broker.delete_topic("order.created").await;
        world.broker.create_topic("order.created", 1).await;
        for text in ["c", "d", "e"] {
            world.broker.publish_to(order(text), 0).await;
        }
        let mut inbox = match inbox {
            Some(inbox) => inbox,
            None => world.inbox(&["by-position"]).await,
        };
        for _ in 0..3 {
            assert_eq!(next(&mut inbox).await, Outcome::Processed, "running: {running}");
        }
        assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 5);
        inbox.close().await;
    }
}
