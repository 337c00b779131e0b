//! Brokers that are gone: at the start, while messages are handled, and at the end.

use std::time::{Duration, Instant};

use inbox_tests::{
    KafkaCluster, SqliteFile, eventually,
    servers::kafka::{Kafka, own},
};

use super::{Kafkaesque, on, says, stop};

async fn server() -> Kafka {
    tokio::task::spawn_blocking(own).await.expect("a server")
}

async fn fresh(server: &Kafka) -> Kafkaesque {
    let world = on::<SqliteFile>(KafkaCluster::on(&server.brokers())).await;
    world.broker.make_topic("order.created", 1).await;
    world
}

/// The broker is killed: a stop ends in time, whatever runtime it is on; a start waits and goes on when the broker is
/// there; what was acknowledged and not committed is a duplicate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_without_brokers_a_stop_ends_in_time_and_a_start_waits() {
    let server = server().await;
    let world = fresh(&server).await;
    world.publish("m1").await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("m1 is settled", || world.settled("billing")).await;
    server.kill();
    says(&inbox, "no broker answers").await;
    let start = Instant::now();
    stop(inbox).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());

    // The same on one thread, from a start without brokers.
    let lonely = world.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let inbox = lonely.builder(&["shipping"]).spawn().await.expect("an inbox");
            assert!(!inbox.health().ready);
            let start = Instant::now();
            stop(inbox).await;
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        });
    });
    tokio::task::spawn_blocking(move || thread.join())
        .await
        .expect("joined")
        .expect("no panic");

    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    says(&inbox, "it has not been joined yet").await;
    server.resume().expect("the server again");
    world.publish("m2").await;
    eventually("m2 is settled", || world.settled("billing")).await;
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
    world.assert_done("billing", "m1").await;
    world.assert_done("billing", "m2").await;
}
