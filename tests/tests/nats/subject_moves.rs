//! A subject that moves to another stream, and the lag.

use std::time::Duration;

use inbox_tests::{Settled, Step, TestDatabase, eventually, servers::Proxy};
use serde_json::{Value, json};

use super::{World, assert_all_done, effects, publish, ready, run, server, stop, through, world_of, world_on};

const SECOND: Duration = Duration::from_secs(1);

/// Moves `order.>` from one stream to the other.
async fn move_orders(world: &World, from: &str, to: &str) {
    let account = world.broker.account();
    for (name, subjects) in [(from, json!([format!("nothing.{from}")])), (to, json!(["order.>"]))] {
        let config = json!({ "name": name, "subjects": subjects, "storage": "file", "retention": "limits",
            "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "num_replicas": 1, "duplicate_window": 100_000_000 });
        let info = account.api(&format!("STREAM.INFO.{name}"), Value::Null).await;
        let verb = if info["config"].is_object() { "UPDATE" } else { "CREATE" };
        let answer = account.api(&format!("STREAM.{verb}.{name}"), config).await;
        assert!(answer["config"].is_object(), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g34_a_subject_that_moves_to_another_stream_is_read_there() {
    let server = server().await;
    let world = world_on(&server).await;
    publish(&world, 1, 5).await;
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 5).await;
    move_orders(&world, "TEST", "SECOND").await;
    publish(&world, 6, 10).await;
    effects(&world, 10).await;
    // And back, where its durable still exists.
    move_orders(&world, "SECOND", "TEST").await;
    publish(&world, 11, 15).await;
    effects(&world, 15).await;
    ready(&inbox, true).await;
    for stream in ["TEST", "SECOND"] {
        eventually(&format!("{stream} is settled"), || async {
            world.broker.settled_on(stream, "billing", "order.created").await == Some(Settled::ALL)
        })
        .await;
    }
    let report = stop(inbox).await;
    assert_eq!((report.processed, report.duplicate), (15, 0), "{report}");
    assert_all_done(&world, 15).await;
}

/// The new stream is read after the old one is settled; until then health reports both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g34_the_old_stream_is_drained_first_and_health_reports_it() {
    let server = server().await;
    let world = world_on(&server).await;
    publish(&world, 1, 5).await;
    world.probe.script(|call| {
        if call.id == "m3" {
            Step::RetryAfter(SECOND)
        } else {
            Step::Ok
        }
    });
    let inbox = run(&world, "patient", SECOND).await;
    effects(&world, 4).await;
    move_orders(&world, "TEST", "SECOND").await;
    publish(&world, 6, 10).await;
    eventually("it says so", || async {
        let reasons = inbox.health().reasons;
        reasons
            .iter()
            .any(|reason| reason.contains("SECOND") && reason.contains("TEST"))
    })
    .await;
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 4);
    world.probe.script(|_| Step::Ok);
    effects(&world, 10).await;
    ready(&inbox, true).await;
    stop(inbox).await;
    assert_all_done(&world, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g34_health_reports_a_subject_that_no_stream_holds_any_more() {
    let server = server().await;
    let world = world_on(&server).await;
    publish(&world, 1, 1).await;
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 1).await;
    move_orders(&world, "TEST", "OTHER").await;
    world.broker.account().api("STREAM.DELETE.OTHER", Value::Null).await;
    eventually("it says so", || async {
        let reasons = inbox.health().reasons;
        reasons
            .iter()
            .any(|reason| reason.contains("no stream holds the subject order.created"))
    })
    .await;
    move_orders(&world, "OTHER", "TEST").await;
    ready(&inbox, true).await;
    publish(&world, 2, 2).await;
    effects(&world, 2).await;
    stop(inbox).await;
}

/// A durable of the group on a former stream is named at the start.
#[tokio::test]
async fn g34_unsettled_messages_in_a_former_stream_are_warned_of() {
    let server = server().await;
    let world = world_on(&server).await;
    drop(world.inbox(&["billing"]).await);
    publish(&world, 1, 5).await;
    move_orders(&world, "TEST", "SECOND").await;
    let (log, _guard) = super::startup::logged();
    let inbox = world.inbox(&["billing"]).await;
    eventually("it is said", || async {
        let log = String::from_utf8_lossy(&log.lock().expect("the log")).into_owned();
        log.lines()
            .any(|line| line.contains("billing@order,created") && line.contains("TEST") && line.contains('5'))
    })
    .await;
    drop(inbox);
}

/// Over all replicas; unknown rather than out of date.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g38_lag_is_the_number_of_unacknowledged_messages_of_the_group() {
    let server = server().await;
    let world = world_of(inbox_tests::NatsJetStream::on(&server).await).await;
    let proxy = Proxy::before(server.port()).await;
    publish(&world, 1, 30).await;
    world.probe.script(|_| Step::Hang);
    let builder = || {
        world
            .builder(&["billing"])
            .broker(through(&world, &proxy))
            .ack_wait(Duration::from_secs(30))
    };
    let (one, other) = (
        builder().spawn().await.expect("an inbox"),
        builder().spawn().await.expect("an inbox"),
    );
    let lag = |inbox: &inbox_runtime::InboxHandle| inbox.health().handlers[0].lag;
    for inbox in [&one, &other] {
        assert_eq!(lag(inbox), Some(30));
    }
    // Even while every worker is busy.
    eventually("a handler runs", || async { world.probe.total() >= 1 }).await;
    publish(&world, 31, 40).await;
    for inbox in [&one, &other] {
        eventually("forty", || async { lag(inbox) == Some(40) }).await;
    }
    proxy.cut();
    for inbox in [&one, &other] {
        eventually("unknown", || async { lag(inbox).is_none() }).await;
    }
    proxy.heal();
    for inbox in [&one, &other] {
        eventually("the lag is known", || async { lag(inbox) == Some(40) }).await;
    }
    drop((one, other));
}
