//! Delete markers, which the server publishes for removed messages.

use std::time::Duration;

use inbox_tests::{TestDatabase, eventually};
use serde_json::json;

use super::{World, effects, publish, run, stop, world};

async fn publish_marker(world: &World, reason: &str) {
    let headers = format!("NATS/1.0\r\nNats-Marker-Reason: {reason}\r\n\r\n");
    let account = world.broker.account();
    account.publish_raw("order.created", headers, b"").await;
}

/// More than a pull request asks for, and nothing after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g57_delete_markers_are_acknowledged_without_a_handler() {
    let world = world().await;
    for reason in ["MaxAge", "Purge", "Remove"] {
        publish_marker(&world, reason).await;
    }
    publish(&world, 1, 2).await;
    for _ in 0..20 {
        publish_marker(&world, "MaxAge").await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.dead_lettered), (2, 0), "{report}");
    eventually("settled", || world.settled("billing")).await;
    drop(inbox);
    // While a pull waits, too.
    let inbox = run(&world, "billing", Duration::from_secs(1)).await;
    publish_marker(&world, "MaxAge").await;
    publish(&world, 3, 3).await;
    effects(&world, 3).await;
    eventually("settled", || world.settled("billing")).await;
    stop(inbox).await;
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_dead_letters").await,
        0
    );
}

/// The server publishes one when a message expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g57_a_delete_marker_of_the_server_is_recognised() {
    let world = world().await;
    let account = world.broker.account();
    account
        .make_stream(
            "SHORT",
            &["short.created"],
            json!({ "max_age": 1_000_000_000_u64, "allow_msg_ttl": true, "subject_delete_marker_ttl": 60_000_000_000_u64, "allow_rollup_hdrs": true }),
        )
        .await;
    account.publish_raw("short.created", "", b"{\"order_id\":\"o\"}").await;
    eventually("a marker in its place", || async {
        let info = account.api("STREAM.INFO.SHORT", serde_json::Value::Null).await;
        info["state"]["last_seq"] == 2 && info["state"]["messages"] == 1
    })
    .await;
    let mut inbox = world
        .builder_of(super::handlers::MODULE, &["short"])
        .build()
        .await
        .expect("an inbox");
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.dead_lettered), (0, 0), "{report}");
    eventually("settled", || async {
        world.broker.settled_on("SHORT", "short", "short.created").await == Some(inbox_tests::Settled::ALL)
    })
    .await;
}
