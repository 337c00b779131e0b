//! A cluster of three servers whose stream leader is killed repeatedly, with a publisher and two workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_runtime::{BrokerError, Nats};
use inbox_tests::{
    Flaky, NatsJetStream, Order, PostgresDatabase, Probe, TestBroker, TestDatabase, eventually,
    process::{Mode, WorkerCommand, long},
    servers::nats::{Nats as Server, NatsCluster},
};
use serde_json::{Value, json};

/// The time between two kills.
const REIGN: Duration = Duration::from_secs(5);

/// Publishes until `stop`; a message that isn't confirmed is published again with its id.
async fn publish_until(broker: Nats, stop: Arc<AtomicBool>, published: Arc<AtomicU32>, not_now: Arc<AtomicU32>) {
    while !stop.load(Ordering::SeqCst) {
        let id = format!("m{}", published.load(Ordering::SeqCst));
        let message = Order::new("o").to("order.created").id(id);
        match broker.publish(message).await {
            Ok(_) => drop(published.fetch_add(1, Ordering::SeqCst)),
            // An election must not refuse a message for good.
            Err(BrokerError::NotNow { .. } | BrokerError::Unavailable { .. }) => {
                not_now.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The server that leads the stream, once there is one.
async fn leader<'a>(world: &NatsJetStream, cluster: &'a NatsCluster) -> &'a Server {
    let found = Arc::new(std::sync::Mutex::new(String::new()));
    eventually("a leader", || async {
        let info = world.account().api("STREAM.INFO.TEST", Value::Null).await;
        let name = info["cluster"]["leader"].as_str().unwrap_or_default().to_owned();
        let there = !name.is_empty();
        *found.lock().expect("the name") = name;
        there
    })
    .await;
    let name = found.lock().expect("the name").clone();
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
    let (stop, published, not_now) = (Arc::default(), Arc::default(), Arc::default());
    let publisher = tokio::spawn(publish_until(
        world.broker.connect(),
        Arc::clone(&stop),
        Arc::clone(&published),
        Arc::clone(&not_now),
    ));
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
    stop.store(true, Ordering::SeqCst);
    publisher.await.expect("no message was refused");
    let count = i64::from(published.load(Ordering::SeqCst));
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
    let not_now = not_now.load(Ordering::SeqCst);
    println!("{count} messages, {runs} runs, {down} leaders killed, {not_now} times not taken");
    assert!(count > 0, "nothing was published");
    world.assert_each_done_once(count).await;
}
