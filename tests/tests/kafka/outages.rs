//! Outages: at the start, while messages are handled, and at the end.

use std::{sync::Arc, time::Duration};

use inbox_tests::{
    KafkaCluster, SqliteFile, Step, eventually,
    servers::kafka::{Kafka, own},
};

use tokio::sync::Semaphore;

use super::{KafkaWorld, stop, wait_for_reason, world_on};

/// What an inbox that is stopped may take at most by its settings: longer than [`stop`] waits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(300);

async fn server() -> Kafka {
    tokio::task::spawn_blocking(own).await.expect("a server")
}

async fn fresh(server: &Kafka) -> KafkaWorld {
    let world = world_on::<SqliteFile>(KafkaCluster::on(&server.brokers())).await;
    world.broker.create_topic("order.created", 1).await;
    world
}

/// The broker is killed: a stop ends in time, on any runtime; a start waits for the broker; what was acknowledged and
/// not committed is a duplicate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_without_brokers_a_stop_ends_in_time_and_a_start_waits() {
    let server = server().await;
    let world = fresh(&server).await;
    world.publish("m1").await;
    let builder = world.builder(&["billing"]).shutdown_timeout(SHUTDOWN_TIMEOUT);
    let inbox = builder.spawn().await.expect("an inbox");
    eventually("m1 is settled", || world.settled("billing")).await;
    server.kill();
    wait_for_reason(&inbox, "no broker answers").await;
    stop(inbox).await;

    // The same on one thread, from a start without brokers.
    let clone = world.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let builder = clone.builder(&["shipping"]).shutdown_timeout(SHUTDOWN_TIMEOUT);
            let inbox = builder.spawn().await.expect("an inbox");
            assert!(!inbox.health().ready);
            stop(inbox).await;
        });
    });
    tokio::task::spawn_blocking(move || thread.join())
        .await
        .expect("joined")
        .expect("no panic");

    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    wait_for_reason(&inbox, "the group is not joined yet").await;
    server.resume().expect("restarted");
    world.publish("m2").await;
    eventually("m2 is settled", || world.settled("billing")).await;
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
    world.assert_done("billing", "m1").await;
    world.assert_done("billing", "m2").await;
}

/// Acknowledgements after the last commit are reported at the end, and are duplicates when the brokers are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g18_acknowledgements_that_are_not_committed_are_reported() {
    let server = server().await;
    let world = fresh(&server).await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |_| Step::Gate(wait.clone()));
    for number in 0..5 {
        world.publish(&format!("m{number}")).await;
    }
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("the first is handled", async || world.probe.total() == 1).await;
    // All five are prefetched.
    server.kill();
    wait_for_reason(&inbox, "no broker answers").await;
    gate.add_permits(5);
    eventually("all are handled", async || inbox.report().acked == 5).await;
    inbox.stop();
    let report = inbox.join().await.expect("a clean end");
    assert_eq!(
        (report.acked, report.ack_failures, report.unconfirmed),
        (5, 0, 5),
        "{report}"
    );
    assert!(report.to_string().ends_with("unconfirmed=5"), "{report}");

    server.resume().expect("the server");
    world.probe.script(|_| Step::Ok);
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("all are settled", || world.settled("billing")).await;
    inbox.stop();
    let report = inbox.join().await.expect("a clean end");
    assert_eq!(
        (report.duplicate, report.processed, report.unconfirmed),
        (5, 0, 0),
        "{report}"
    );
}
