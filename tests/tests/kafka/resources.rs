//! Memory with many partitions, threads with many groups.

use std::time::Duration;

use inbox_tests::{
    Order,
    process::{Mode, WorkerCommand, long},
};

use super::KafkaWorld;

const MB: u64 = 1 << 20;

/// A hundred partitions prefetch behind their first records; 12 MB each in the long form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g56_a_hundred_partitions_share_one_limit() {
    let world = KafkaWorld::new().await;
    let (partitions, records) = (100, if long() { 120 } else { 25 });
    world.broker.grow_topic("order.created", partitions).await;
    let order = Order::new("x".repeat(100_000)).to("order.created");
    for partition in 0..partitions {
        let records = (0..records).map(|number| {
            let order = order.clone().id(format!("m{partition}-{number}"));
            world.broker.publish_to(order, partition)
        });
        futures_util::future::join_all(records).await;
    }
    let mut worker = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .script("sleep:10m")
        .start();
    worker.says("run billing").await;
    let (mut highest, mut since) = (0, 0);
    // Until it has not grown for three seconds.
    while since < 30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = worker.memory();
        since = if now > highest + MB { 0 } else { since + 1 };
        highest = highest.max(now);
    }
    println!(
        "{} MB with {partitions} partitions of {} MB",
        highest / MB,
        records * 100_000 / 1_000_000
    );
    assert!(highest < 150 * MB, "{} MB", highest / MB);
    worker.kill().await;
}

/// Besides librdkafka's threads there are two per group, and one that polls the metadata of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g56_a_group_has_two_threads_besides_those_of_librdkafka() {
    let world = KafkaWorld::new().await;
    let groups = [
        "audit",
        "billing",
        "by-header",
        "by-order",
        "by-position",
        "crowd",
        "manual",
        "shipping",
    ];
    let mut worker = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, &groups.join(",")).start();
    worker.says("ready").await;
    let threads = worker.threads();
    let count = |beginning: &str| threads.iter().filter(|name| name.starts_with(beginning)).count();
    let (ours, theirs) = (count("kafka-"), count("rdk:"));
    println!(
        "{ours} threads of ours and {theirs} of librdkafka with {} groups",
        groups.len()
    );
    let expected = 2 * groups.len()..=2 * groups.len() + 1;
    assert!(expected.contains(&ours), "{threads:?}");
    worker.stop().await;
}
