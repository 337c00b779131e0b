//! Replicas that share a group's work, and start and stop.

use std::time::Duration;

use inbox_tests::{Settled, Step, TestBroker, eventually};

use super::{assert_all_done, effects, publish, run, stop, world};

/// Each replica is stopped in turn. Leases last for ten minutes, so a message that waited for one would be noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_stops_lease_no_message() {
    let world = world().await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(3)));
    publish(&world, 1, 200).await;
    // A leased message would be redelivered after the test's end.
    let lease = Duration::from_secs(600);
    let mut replicas = [run(&world, "audit", lease).await, run(&world, "audit", lease).await];
    let mut processed = 0;
    for round in 0..4_usize {
        effects(&world, i64::try_from(round * 40 + 20).expect("small")).await;
        let next = run(&world, "audit", lease).await;
        processed += stop(std::mem::replace(&mut replicas[round % 2], next)).await.processed;
    }
    effects(&world, 200).await;
    eventually("settled", || async {
        world.broker.settled("audit", ">").await == Some(Settled::ALL)
    })
    .await;
    for replica in replicas {
        processed += stop(replica).await.processed;
    }
    assert_eq!(processed, 200);
    assert_all_done(&world, 200).await;
}
