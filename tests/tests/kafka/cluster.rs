//! A cluster of three brokers that are killed in turn, with a publisher and two workers.

use std::time::{Duration, Instant};

use inbox_tests::{
    KafkaCluster, Published, Publisher, Settled, SqliteFile, TestBroker, eventually,
    process::{Mode, WorkerCommand, long},
    servers::kafka::Kafka as Server,
};

use super::{KafkaWorld, world_on};

/// How long brokers are killed.
const CAMPAIGN: Duration = Duration::from_secs(240);
/// The shortest time between two kills. A broker must be in sync before the next one is killed.
const REIGN: Duration = Duration::from_secs(5);

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
    let publisher = Publisher::start(world.broker.connect());
    let start = || WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "audit").start();
    let workers = [start(), start()];
    let kills = kill_in_turn(&cluster, &world).await;
    let Published {
        messages: count,
        not_now,
    } = publisher.stop().await;
    eventually("settled", async || {
        world.broker.try_settled("audit", ">").await == Ok(Some(Settled::ALL))
    })
    .await;
    let mut runs = 0;
    for mut worker in workers {
        worker.says("ready").await;
        runs += worker.stop().await.all_runs();
    }
    println!("{count} messages, {runs} runs, {kills} brokers killed, {not_now} times not taken");
    assert!(count > 0 && kills > 3, "{count} messages, {kills} kills");
    world.assert_each_done_once(count).await;
}
