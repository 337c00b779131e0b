//! A cluster of three servers whose stream leader is killed repeatedly, with a publisher and two workers.

use std::time::{Duration, Instant};

use inbox_tests::{
    Flaky, NatsJetStream, PostgresDatabase, Probe, Published, Publisher, TestBroker, TestDatabase, eventually,
    process::{Mode, WorkerCommand, long},
    servers::nats::{Nats as Server, NatsCluster},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The time between two kills.
const REIGN: Duration = Duration::from_secs(5);

/// The server that leads the stream, once there is one.
async fn leader<'a>(world: &NatsJetStream, cluster: &'a NatsCluster) -> &'a Server {
    let found = Mutex::new(String::new());
    eventually("a leader", || async {
        let info = world.account().api("STREAM.INFO.TEST", Value::Null).await;
        let name = info["cluster"]["leader"].as_str().unwrap_or_default().to_owned();
        let there = !name.is_empty();
        *found.lock() = name;
        there
    })
    .await;
    let name = found.into_inner();
    cluster.named(&name).expect("one of the cluster")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g51_every_effect_once_while_the_leader_of_the_stream_is_killed() {
    let kills = if long() { 60 } else { 3 };
    let cluster = tokio::task::spawn_blocking(NatsCluster::start).await.expect("it ends");
    let cluster = cluster.expect("a cluster");
    let broker = NatsJetStream::on_cluster(&cluster, json!({ "duplicate_window": 120_000_000_000_u64 })).await;
    let world = inbox_tests::World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database: PostgresDatabase::fresh().await,
        probe: Probe::default(),
    };
    let publisher = Publisher::start(world.broker.connect());
    let start = || {
        WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "audit")
            .ack_wait(Duration::from_secs(2))
            .start()
    };
    let workers = [start(), start()];
    let mut down = 0;
    for _ in 0..kills {
        let begun = Instant::now();
        let server = leader(&world.broker, &cluster).await;
        server.kill();
        down += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::task::block_in_place(|| server.resume()).expect("the server");
        tokio::time::sleep(REIGN.saturating_sub(begun.elapsed())).await;
    }
    let Published {
        messages: count,
        not_now,
    } = publisher.stop().await;
    let number = async |sql: &str| world.database.number(sql).await;
    eventually("every effect", || async {
        number("SELECT count(*) FROM effects").await >= count
    })
    .await;
    eventually("settled", || async {
        let question = "CONSUMER.INFO.TEST.audit@#";
        let info = world.broker.account().api(question, Value::Null).await;
        info["num_pending"] == 0 && info["num_ack_pending"] == 0
    })
    .await;
    let mut runs = 0;
    for worker in workers {
        runs += worker.kill().await.all_runs();
    }
    println!("{count} messages, {runs} runs, {down} leaders killed, {not_now} times not taken");
    assert!(count > 0, "nothing was published");
    world.assert_each_done_once(count).await;
}
