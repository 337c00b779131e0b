//! Positions that a server assigns a second time, to messages without an id.

use std::path::Path;

use inbox_tests::{
    NatsJetStream, TestDatabase, eventually,
    servers::nats::{Nats as Server, NatsCluster},
};
use serde_json::{Value, json};

use super::{World, effects, run, server, stop, world_of, world_on};

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// Publishes a message without an id.
async fn publish_plain(world: &World, order: &str) {
    let account = world.broker.account();
    let payload = format!("{{\"order_id\":\"{order}\"}}");
    // Retried: the stream may have no leader yet.
    eventually("stored", || async {
        let answer = account.request("order.created", "", payload.as_bytes()).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        answer["seq"].as_u64() > Some(0)
    })
    .await;
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp").success());
}

fn restart(server: &Server, change: impl FnOnce()) {
    server.stop();
    change();
    tokio::task::block_in_place(|| server.resume()).expect("the server");
}

/// The data folder is replaced by an older copy: later sequence numbers are assigned again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_new_messages_at_positions_of_a_restored_stream_are_handled() {
    let server = server().await;
    let world = world_on(&server).await;
    let (data, saved) = (server.folder().join("data"), server.folder().join("saved"));
    for order in ["a1", "a2", "a3"] {
        publish_plain(&world, order).await;
    }
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 3).await;
    eventually("settled", || world.settled("billing")).await;
    stop(inbox).await;
    restart(&server, || copy(&data, &saved));
    for order in ["a4", "a5"] {
        publish_plain(&world, order).await;
    }
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 5).await;
    eventually("settled", || world.settled("billing")).await;
    stop(inbox).await;
    restart(&server, || {
        std::fs::remove_dir_all(&data).expect("removed");
        copy(&saved, &data);
    });
    // Other messages with the same sequence numbers.
    for order in ["b4", "b5", "b6"] {
        publish_plain(&world, order).await;
    }
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 8).await;
    eventually("settled", || world.settled("billing")).await;
    let report = stop(inbox).await;
    assert_eq!(report.duplicate, 0, "{report}");
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_dead_letters").await,
        0
    );
}

/// The copy is older than the group's durable, and the program keeps running: its checkpoint is after the last message
/// of the restored stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_a_restored_stream_is_read_from_its_first_message() {
    let server = server().await;
    let world = world_on(&server).await;
    let (data, saved) = (server.folder().join("data"), server.folder().join("saved"));
    restart(&server, || copy(&data, &saved));
    let inbox = run(&world, "billing", SECOND).await;
    for order in ["a1", "a2", "a3", "a4"] {
        publish_plain(&world, order).await;
    }
    effects(&world, 4).await;
    // The checkpoint is read together with the lag, every five seconds, and is used by the next pull.
    eventually("the checkpoint is read", async || {
        inbox.health().handlers[0].lag == Some(0)
    })
    .await;
    tokio::time::sleep(SECOND * 2).await;
    restart(&server, || {
        std::fs::remove_dir_all(&data).expect("removed");
        copy(&saved, &data);
    });
    for order in ["b1", "b2"] {
        publish_plain(&world, order).await;
    }
    effects(&world, 6).await;
    eventually("settled", || world.settled("billing")).await;
    let report = stop(inbox).await;
    assert_eq!(report.duplicate, 0, "{report}");
}

/// A replicated stream in memory is empty after all its servers were restarted, and keeps its creation time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_messages_of_a_replicated_memory_stream_that_was_lost_are_handled() {
    let cluster = tokio::task::spawn_blocking(NatsCluster::start).await.expect("it ends");
    let cluster = cluster.expect("a cluster");
    let world = world_of(NatsJetStream::on_cluster(&cluster, json!({ "storage": "memory" })).await).await;
    for order in ["a1", "a2", "a3"] {
        publish_plain(&world, order).await;
    }
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 3).await;
    for round in 1..=2_i64 {
        for server in cluster.servers() {
            server.stop();
        }
        tokio::task::block_in_place(|| cluster.resume()).expect("the cluster");
        for number in 1..=3 {
            publish_plain(&world, &format!("b{round}-{number}")).await;
        }
        effects(&world, 3 + round * 3).await;
    }
    stop(inbox).await;
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_dead_letters").await,
        0
    );
}
