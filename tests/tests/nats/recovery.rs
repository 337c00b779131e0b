//! Recovery: durables and streams deleted, servers killed and connections cut under load.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_tests::{
    Settled, Step, TestBroker, TestDatabase, eventually,
    servers::{Proxy, nats::Nats as Server},
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    World, assert_all_done, durable, effects, monitor, publish, ready, run, server, stop, through, world, world_on,
};

/// Longer than any test may take.
const LONG: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn slowly(world: &World) {
    world.probe.script(|_| Step::Sleep(Duration::from_millis(5)));
}

async fn delete_durable(world: &World) {
    let deleted = world
        .broker
        .account()
        .api("CONSUMER.DELETE.TEST.billing@order,created", Value::Null)
        .await;
    assert_eq!(deleted["success"], true, "{deleted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f48_a_deleted_durable_is_recreated_and_loses_nothing() {
    let world = world().await;
    slowly(&world);
    publish(&world, 1, 100).await;
    let inbox = run(&world, "billing", SECOND).await;
    for count in [20, 60] {
        effects(&world, count).await;
        delete_durable(&world).await;
    }
    effects(&world, 100).await;
    publish(&world, 101, 110).await;
    effects(&world, 110).await;
    eventually("settled", || world.settled("billing")).await;
    ready(&inbox, true).await;
    let report = stop(inbox).await;
    assert_eq!(report.processed, 110, "{report}");
    assert_all_done(&world, 110).await;
}

/// What was settled before is not redelivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f48_a_recreated_durable_starts_after_the_last_ack_floor() {
    let world = world().await;
    publish(&world, 1, 50).await;
    let inbox = run(&world, "billing", LONG).await;
    effects(&world, 50).await;
    // The ack floor is read together with the lag, every five seconds, and is used by the next pull.
    eventually("the ack floor is read", async || {
        inbox.health().handlers[0].lag == Some(0)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    delete_durable(&world).await;
    publish(&world, 51, 60).await;
    effects(&world, 60).await;
    eventually("settled", || world.settled("billing")).await;
    let report = stop(inbox).await;
    assert_eq!((report.processed, report.duplicate), (60, 0), "{report}");
    let begun = durable(world.broker.account(), "billing").await["config"]["opt_start_seq"].clone();
    assert_eq!(begun, 51);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f48_a_recreated_stream_is_read_from_its_first_message() {
    let world = world().await;
    slowly(&world);
    let account = world.broker.account();
    publish(&world, 1, 40).await;
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 20).await;
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    ready(&inbox, false).await;
    let before = world.database.number("SELECT count(*) FROM effects").await;
    account.make_stream("TEST", &["order.>"], json!({})).await;
    // With the sequence numbers of the old ones.
    publish(&world, 101, 140).await;
    eventually("all of the new stream", || async {
        world
            .database
            .number("SELECT count(*) FROM effects WHERE msg_id > 'm1' AND length(msg_id) = 4")
            .await
            == 40
    })
    .await;
    ready(&inbox, true).await;
    stop(inbox).await;
    let number = async |sql: &str| world.database.number(sql).await;
    assert!(number("SELECT count(*) FROM effects").await >= before + 40);
    assert_eq!(number("SELECT count(*) - count(DISTINCT msg_id) FROM effects").await, 0);
}

/// No pull request is outstanding: the connection is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_a_durable_deleted_without_a_status_is_found_missing() {
    let server = server().await;
    let world = world_on(&server).await;
    let proxy = Proxy::before(server.port()).await;
    let builder = world
        .builder(&["billing"])
        .broker(through(&world, &proxy))
        .ack_wait(SECOND);
    let inbox = builder.spawn().await.expect("an inbox");
    publish(&world, 1, 1).await;
    effects(&world, 1).await;
    proxy.cut();
    ready(&inbox, false).await;
    delete_durable(&world).await;
    proxy.heal();
    publish(&world, 2, 2).await;
    effects(&world, 2).await;
    ready(&inbox, true).await;
    stop(inbox).await;
    assert_all_done(&world, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_a_lost_stream_in_memory_is_waited_for() {
    let server = server().await;
    let world = world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    let memory = || account.make_stream("TEST", &["order.>"], json!({ "storage": "memory" }));
    memory().await;
    publish(&world, 1, 5).await;
    let inbox = run(&world, "billing", SECOND).await;
    effects(&world, 5).await;
    server.kill();
    server.resume().expect("the server");
    ready(&inbox, false).await;
    assert!(inbox.health().live);
    memory().await;
    publish(&world, 6, 10).await;
    effects(&world, 10).await;
    ready(&inbox, true).await;
    stop(inbox).await;
    assert_all_done(&world, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_a_server_that_is_killed_ten_times_loses_nothing() {
    let server = server().await;
    let world = world_on(&server).await;
    slowly(&world);
    let inbox = run(&world, "audit", SECOND).await;
    for round in 0..10 {
        publish(&world, round * 20 + 1, round * 20 + 20).await;
        effects(&world, i64::try_from(round * 20 + 5).expect("small")).await;
        // A graceful stop at the end.
        let end = if round == 9 { Server::stop } else { Server::kill };
        end(&server);
        server.resume().expect("the server");
    }
    effects(&world, 200).await;
    eventually("settled", || async {
        world.broker.settled("audit", ">").await == Some(Settled::ALL)
    })
    .await;
    ready(&inbox, true).await;
    stop(inbox).await;
    assert_all_done(&world, 200).await;
}

/// The number of messages that the server has received from its clients.
async fn received(server: &Server) -> u64 {
    monitor(server, "/varz").await["in_msgs"].as_u64().expect("a number")
}

/// The number of messages that the server receives in about two seconds, and how long that was.
async fn request_rate(server: &Server) -> (f64, f64) {
    let (start, before) = (Instant::now(), received(server).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = received(server).await - before;
    (asked as f64, start.elapsed().as_secs_f64())
}

/// A missing stream is requested with a back-off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_a_missing_stream_causes_no_hot_loop() {
    let server = server().await;
    let world = world_on(&server).await;
    let account = world.broker.account();
    let inbox = run(&world, "billing", LONG).await;
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    ready(&inbox, false).await;
    let (asked, seconds) = request_rate(&server).await;
    assert!(
        asked >= 1.0 && asked < 20.0 * seconds,
        "{asked} messages in {seconds} s"
    );
    // Nor does an idle one.
    account.make_stream("TEST", &["order.>"], json!({})).await;
    ready(&inbox, true).await;
    let (asked, seconds) = request_rate(&server).await;
    assert!(asked < 20.0 * seconds, "{asked} messages in {seconds} s");
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f57_a_stop_leaves_the_durable_unchanged() {
    let world = world().await;
    let mut created = None;
    for round in 0..5 {
        let inbox = run(&world, "billing", LONG).await;
        publish(&world, round * 3 + 1, round * 3 + 3).await;
        let done = i64::try_from(round * 3 + 3).expect("small");
        effects(&world, done).await;
        stop(inbox).await;
        let info = durable(world.broker.account(), "billing").await;
        assert_eq!(info["ack_floor"]["stream_seq"], done, "{info}");
        assert_eq!(*created.get_or_insert(info["created"].clone()), info["created"]);
    }
    assert_eq!(world.probe.total(), 15);
    assert_all_done(&world, 15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_connection_is_cut() {
    let server = server().await;
    let world = world_on(&server).await;
    let proxy = Proxy::before(server.port()).await;
    slowly(&world);
    let builder = world
        .builder(&["audit"])
        .broker(through(&world, &proxy))
        .ack_wait(SECOND);
    let inbox = builder.spawn().await.expect("an inbox");
    for round in 0..5 {
        publish(&world, round * 20 + 1, round * 20 + 20).await;
        effects(&world, i64::try_from(round * 20 + 5).expect("small")).await;
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.heal();
    }
    effects(&world, 100).await;
    eventually("settled", || async {
        world.broker.settled("audit", ">").await == Some(Settled::ALL)
    })
    .await;
    stop(inbox).await;
    assert_all_done(&world, 100).await;
}

/// The server is down when the program stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g18_an_unconfirmed_ack_is_counted() {
    let server = server().await;
    let world = world_on(&server).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    world.probe.script(move |_| Step::Gate(closed.clone()));
    let inbox = run(&world, "billing", LONG).await;
    publish(&world, 1, 1).await;
    eventually("the handler runs", || async { world.probe.total() == 1 }).await;
    server.kill();
    gate.add_permits(1);
    effects(&world, 1).await;
    let report = stop(inbox).await;
    assert_eq!(
        (report.processed, report.acked, report.ack_failures),
        (1, 0, 1),
        "{report}"
    );
    // It is redelivered and deduplicated.
    server.resume().expect("the server");
    let inbox = run(&world, "billing", SECOND).await;
    eventually("settled", || world.settled("billing")).await;
    stop(inbox).await;
    assert_all_done(&world, 1).await;
}

/// A malformed answer makes the library's reader panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g27_a_client_library_that_has_ended_is_replaced() {
    let server = server().await;
    let world = world_on(&server).await;
    let inbox = run(&world, "billing", SECOND).await;
    for round in 1..=3_usize {
        publish(&world, round * 2 - 1, round * 2).await;
        effects(&world, i64::try_from(round * 2).expect("small")).await;
        let connections = monitor(&server, "/connz?subs=1").await["connections"].clone();
        let control = connections.as_array().into_iter().flatten().find(|connection| {
            let name = connection["name"].as_str().unwrap_or_default();
            name.starts_with("inbox-runtime") && !name.ends_with("deliveries")
        });
        let inboxes = control.expect("the connection")["subscriptions_list"].clone();
        let answers = inboxes[0].as_str().expect("a subject").replace('*', "any");
        let account = world.broker.account();
        account.send(&answers, b"NATS/1.0\r\nX: a\rb\r\n\r\n", b"").await;
    }
    publish(&world, 7, 8).await;
    effects(&world, 8).await;
    eventually("settled", || world.settled("billing")).await;
    ready(&inbox, true).await;
    stop(inbox).await;
    assert_all_done(&world, 8).await;
}
