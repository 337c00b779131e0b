//! Start offsets of a group, lost offsets, and records that were removed before they were read.

use std::time::{Duration, SystemTime};

use inbox_runtime::{Broker, BrokerError, Lease, Outcome, Source, StartPosition, Subscription};
use inbox_tests::{
    Order, TestBroker, eventually, next,
    process::{Mode, WorkerCommand},
};

use super::{KafkaWorld, stop};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_a_group_whose_offsets_are_lost_skips_nothing() {
    let world = KafkaWorld::new().await;
    world.publish("m1").await;
    let inbox = world.builder(&["newest"]).spawn().await.expect("an inbox");
    eventually("it has started at the end", || world.settled("newest")).await;
    for id in ["m2", "m3"] {
        world.publish(id).await;
    }
    eventually("they are settled", || world.settled("newest")).await;
    stop(inbox).await;
    world.broker.delete_group("newest").await;
    for id in ["m4", "m5"] {
        world.publish(id).await;
    }
    let mut inbox = world.inbox(&["newest"]).await;
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        outcomes.push(next(&mut inbox).await);
    }
    use Outcome::{Duplicate, Processed};
    assert_eq!(outcomes, [Processed, Duplicate, Duplicate, Processed, Processed]);
    assert!(world.settled("newest").await);
    inbox.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_starts_at_a_time() {
    let world = KafkaWorld::new().await;
    world.broker.grow_topic("order.created", 2).await;
    let order = |id: &str| Order::new("o").to("order.created").id(id.to_owned());
    for (partition, id) in [(0, "m1"), (1, "m2")] {
        world.broker.publish_to(order(id), partition).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("now");
    let start = StartPosition::Time(i64::try_from(now.as_millis()).expect("milliseconds"));
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.broker.publish_to(order("m3"), 0).await;
    let kafka = world.broker.connect();
    let subscription = Subscription::new("by-time", "order.created").start(start);
    let mut sources = kafka.subscribe(vec![subscription]).await.expect("a source");
    let read = |delivery: &inbox_runtime::Delivery| delivery.headers.get("message_id").map(<[u8]>::to_vec);
    let first = sources[0].pull(10, Duration::from_secs(60)).await.expect("a delivery");
    assert_eq!(first.len(), 1);
    assert_eq!(read(&first[0].0).as_deref(), Some(&b"m3"[..]));
    // The start offset of a partition with only older records is committed too.
    eventually("both offsets are committed", async || {
        world.broker.committed("by-time", "order.created").await == [Some(1), Some(1)]
    })
    .await;
    first[0].1.ack().await.expect("acknowledged");
    sources[0].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_at_a_sequence_is_refused_and_says_what_to_write() {
    let world = KafkaWorld::new().await;
    let subscription = Subscription::new("by-number", "order.created").start(StartPosition::Sequence(7));
    let refused = world.broker.connect().subscribe(vec![subscription]).await;
    let Err(BrokerError::Invalid(text)) = refused else {
        panic!("{refused:?}");
    };
    for part in ["sequence:7", "order.created", "start = \"2026-01-31T00:00:00Z\""] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g58_records_that_were_removed_are_counted_in_one_warning() {
    let world = KafkaWorld::new().await;
    for number in 0..2 {
        world.publish(&format!("m{number}")).await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    inbox.run_until_idle().await.expect("the broker");
    inbox.close().await;
    for number in 2..10 {
        world.publish(&format!("m{number}")).await;
    }
    world.broker.delete_records("order.created", 0, 6).await;
    let mut worker = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .env("NO_COLOR", "1")
        .start();
    worker.logs("removed=4").await;
    eventually("the rest is settled", || world.settled("billing")).await;
    // Everything is removed while nothing is read.
    let ended = worker.stop().await;
    assert_eq!(
        ended.log.iter().filter(|line| line.contains("removed=")).count(),
        1,
        "{ended:#?}"
    );
    for number in 10..13 {
        world.publish(&format!("m{number}")).await;
    }
    world.broker.delete_records("order.created", 0, 13).await;
    let mut worker = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .env("NO_COLOR", "1")
        .start();
    worker.logs("removed=3").await;
    worker.stop().await;
}
