//! Partitions without a leader, on three brokers.

use inbox_tests::{KafkaCluster, Order, SqliteFile, eventually, servers::kafka::Kafka};

use super::{stop, wait_for_reason, world_on};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g36_partitions_without_a_leader_are_named() {
    let cluster = tokio::task::spawn_blocking(Kafka::start_three).await.expect("it ends");
    let cluster = cluster.expect("three servers");
    let brokers: Vec<_> = cluster.iter().map(Kafka::brokers).collect();
    let world = world_on::<SqliteFile>(KafkaCluster::on(&brokers.join(","))).await;
    world.broker.create_topic("order.created", 6).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.publish("m1").await;
    eventually("m1 is settled", || world.settled("billing")).await;
    eventually("it is ready", async || inbox.health().ready).await;

    let leaders = world.broker.leaders("order.created").await.expect("leaders");
    let victim = leaders[1];
    let led = |node: i32| (0..).zip(&leaders).filter(move |(_, leader)| **leader == node);
    let numbers: Vec<i32> = led(victim).map(|(number, _): (i32, _)| number).collect();
    let server = &cluster[usize::try_from(victim - 1).expect("a node")];
    server.kill();
    let named: Vec<_> = numbers.iter().map(i32::to_string).collect();
    let text = match named.split_last() {
        Some((last, [])) => format!("no leader for partition {last} of"),
        Some((last, rest)) => format!("no leader for partitions {} and {last} of", rest.join(", ")),
        None => panic!("a partition with the leader {victim}"),
    };
    wait_for_reason(&inbox, &text).await;
    // The other partitions go on.
    let other = (0..6).find(|number| !numbers.contains(number)).expect("another one");
    let order = Order::new("o").to("order.created").id("m2");
    world.broker.publish_to(order, other).await;
    eventually("m2 is handled", async || world.probe.runs("billing", "m2") == 1).await;
    assert!(!inbox.health().ready);

    tokio::task::block_in_place(|| server.resume()).expect("restarted");
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
    world.assert_done("billing", "m2").await;
}
