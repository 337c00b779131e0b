//! A cluster of three brokers that are killed in turn, with a publisher and two workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_runtime::{BrokerError, Kafka};
use inbox_tests::{
    KafkaCluster, Order, Settled, SqliteFile, TestBroker, TestDatabase, eventually,
    process::{Mode, WorkerCommand, long},
    servers::kafka::Kafka as Server,
};

use super::{KafkaWorld, world_on};

/// How long brokers are killed.
const CAMPAIGN: Duration = Duration::from_secs(240);
/// The shortest time between two kills. A broker must be in sync before the next one is killed.
const REIGN: Duration = Duration::from_secs(5);

/// Publishes until `stop`; a message that isn't confirmed is published again with its id.
async fn publish_until(broker: Kafka, stop: Arc<AtomicBool>, published: Arc<AtomicU32>, not_now: Arc<AtomicU32>) {
    while !stop.load(Ordering::SeqCst) {
        let id = format!("m{}", published.load(Ordering::SeqCst));
        let message = Order::new("o").to("order.created").id(id);
        match broker.publish(message).await {
            Ok(_) => drop(published.fetch_add(1, Ordering::SeqCst)),
            Err(BrokerError::NotNow { .. } | BrokerError::Unavailable { .. }) => {
                not_now.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills one after the other, controllers and the group's coordinator among them. Returns how many.
async fn kill_in_turn(cluster: &[Server], world: &KafkaWorld) -> u32 {
    let (begun, mut kills) = (Instant::now(), 0);
    for server in cluster.iter().cycle() {
        if begun.elapsed() >= CAMPAIGN {
            break;
        }
        let killed = Instant::now();
        server.kill();
        kills += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::task::block_in_place(|| server.resume()).expect("restarted");
        eventually("it has caught up", async || {
            world.broker.in_sync("order.created").await == Some(3)
        })
        .await;
        tokio::time::sleep(REIGN.saturating_sub(killed.elapsed())).await;
    }
    kills
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f60_f64_every_effect_once_while_the_brokers_of_three_are_killed_in_turn() {
    if !long() {
        println!("skipped, since three servers take long: set INBOX_TEST_LONG=1");
        return;
    }
    let cluster = tokio::task::spawn_blocking(Server::start_three).await.expect("it ends");
    let cluster = cluster.expect("three servers");
    let brokers: Vec<_> = cluster.iter().map(Server::brokers).collect();
    let world = world_on::<SqliteFile>(KafkaCluster::on(&brokers.join(","))).await;
    let settings = [("min.insync.replicas", "2")];
    let topic = world.broker.create_replicated_topic("order.created", 3, 3, &settings);
    topic.await;
    let (stop, published, not_now) = (Arc::default(), Arc::default(), Arc::default());
    let publisher = tokio::spawn(publish_until(
        world.broker.connect(),
        Arc::clone(&stop),
        Arc::clone(&published),
        Arc::clone(&not_now),
    ));
    let start = || WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "audit").start();
    let workers = [start(), start()];
    let kills = kill_in_turn(&cluster, &world).await;
    stop.store(true, Ordering::SeqCst);
    publisher.await.expect("no message was refused");
    eventually("settled", async || {
        world.broker.try_settled("audit", ">").await == Ok(Some(Settled::ALL))
    })
    .await;
    let mut runs = 0;
    for mut worker in workers {
        worker.says("ready").await;
        runs += worker.stop().await.all_runs();
    }
    let count = i64::from(published.load(Ordering::SeqCst));
    let not_now = not_now.load(Ordering::SeqCst);
    println!("{count} messages, {runs} runs, {kills} brokers killed, {not_now} times not taken");
    let number = async |sql: &str| world.database.number(sql).await;
    assert!(count > 0 && kills > 3, "{count} messages, {kills} kills");
    assert_eq!(number("SELECT count(*) FROM effects").await, count);
    assert_eq!(number("SELECT count(DISTINCT msg_id) FROM effects").await, count);
    assert_eq!(number("SELECT count(*) FROM inbox_events").await, count);
    assert_eq!(number("SELECT count(*) FROM inbox_dead_letters").await, 0);
}
