//! Messages of other publishers: headers that the client library can't parse, payloads that look like statuses of the
//! server.

use std::time::Duration;

use inbox_runtime::{Broker, Lease, Nats, Source, Subscription};
use inbox_tests::{Step, TestBroker, eventually, servers::nats::Nats as Server};

use super::{World, assert_all_done, effects, monitor, publish, run, server, stop, world, world_on};

const HOSTILE: [(&str, &[u8]); 12] = [
    ("h1", b"NATS/1.0\r\nNats-Msg-Id: h1\r\nX: \xff\r\n\r\n"),
    ("h2", b"NATS/1.0\r\nNats-Msg-Id: h2\r\nbad name: x\r\n\r\n"),
    ("h3", b"NATS/1.0\r\nNats-Msg-Id: h3\r\nn\xc3\xa9: x\r\n\r\n"),
    ("h4", b"NATS/1.0\r\nNats-Msg-Id: h4\r\nno colon\r\n\r\n"),
    ("h5", b"NATS/1.0 404 No Messages\r\nNats-Msg-Id: h5\r\n\r\n"),
    ("h6", b"NATS/1.0 abc\r\nNats-Msg-Id: h6\r\n\r\n"),
    ("h7", b"NATS/1.0 409 Consumer Deleted\r\nNats-Msg-Id: h7\r\n\r\n"),
    // At these the library's reader panics.
    ("h8", b"NATS/1.0\r\nNats-Msg-Id: h8\r\nX: a\rb\r\n\r\n"),
    ("h9", b"NATS/1.0\r\nNats-Msg-Id: h9\r\nX: \r\r\n\r\n"),
    ("ha", b"NATS/1.0\r\nNats-Msg-Id: ha\r\nX\r: a\r\n\r\n"),
    ("hb", b"NATS/1.0\nNats-Msg-Id: hb\n\n"),
    ("hc", b"NATS/1.0\r\nNats-Msg-Id: hc\r\n: no name\r\n\0: zero\r\n\r\n"),
];

/// Without the header that has the id.
const NO_ID: [&[u8]; 3] = [b"NATS/1.0\r\nX: a\rb\r\n\r\n", b"", b"NATS/1.0\r\n\r\n"];

async fn publish_hostile(world: &World, headers: &[u8]) {
    let account = world.broker.account();
    account
        .publish_raw("order.created", headers, b"{\"order_id\":\"hostile\"}")
        .await;
}

/// Each between valid ones, which must be handled; the hostile ones are handled too, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g27_messages_with_malformed_headers_are_handled() {
    let server = server().await;
    let world = world_on(&server).await;
    for (number, (_, headers)) in HOSTILE.into_iter().enumerate() {
        publish(&world, number * 3 + 1, number * 3 + 3).await;
        publish_hostile(&world, headers).await;
    }
    for headers in NO_ID {
        publish_hostile(&world, headers).await;
    }
    publish(&world, 50, 59).await;
    let all = i64::try_from(HOSTILE.len() * 4 + NO_ID.len() + 10).expect("small");
    let before = connections(&server).await;
    let inbox = run(&world, "audit", Duration::from_secs(1)).await;
    effects(&world, all).await;
    for (id, _) in HOSTILE {
        world.assert_done("audit", id).await;
    }
    // Both connections last: no message broke one.
    assert_eq!(connections(&server).await - before, 2);
    let report = stop(inbox).await;
    assert_eq!(i64::try_from(report.processed), Ok(all), "{report}");
    assert_all_done(&world, all).await;
}

/// A header value is as published, except for surrounding space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g27_a_bare_carriage_return_is_a_part_of_the_value() {
    let world = world().await;
    publish_hostile(&world, b"NATS/1.0\r\nNats-Msg-Id: cr\r\nX:  a\rb \r\n\r\n").await;
    let broker = world.broker.connect();
    let subscription = Subscription::new("billing", "order.created");
    let mut source = broker
        .subscribe(vec![subscription])
        .await
        .expect("subscribed")
        .remove(0);
    let pulled = source.pull(1, Duration::from_secs(60)).await.expect("the broker");
    assert_eq!(pulled[0].0.headers.get("X"), Some(&b"a\rb"[..]));
    assert_eq!(pulled[0].0.delivery_count, Some(1));
    pulled[0].1.ack_confirmed().await.expect("settled");
    eventually("settled", || world.settled("billing")).await;
}

/// It fails, hundreds of others are handled, and another process handles it after its back-off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g28_a_hostile_message_is_retried_after_hundreds_of_others() {
    let server = server().await;
    let world = world_on(&server).await;
    publish_hostile(&world, HOSTILE[3].1).await;
    publish_hostile(&world, HOSTILE[7].1).await;
    world.probe.script(|call| match call.id.as_str() {
        "h4" | "h8" => Step::RetryAfter(Duration::from_millis(100)),
        _ => Step::Ok,
    });
    let inbox = run(&world, "patient", Duration::from_secs(1)).await;
    publish(&world, 1, 300).await;
    effects(&world, 300).await;
    stop(inbox).await;
    world.probe.script(|_| Step::Ok);
    let before = connections(&server).await;
    let inbox = run(&world, "patient", Duration::from_secs(1)).await;
    effects(&world, 302).await;
    eventually("settled", || world.settled("patient")).await;
    assert!(connections(&server).await - before <= 2);
    let health = inbox.health();
    assert!(health.ready, "{health:?}");
    stop(inbox).await;
    assert_all_done(&world, 302).await;
}

/// How many connections the server has accepted.
async fn connections(server: &Server) -> u64 {
    monitor(server, "/varz").await["total_connections"]
        .as_u64()
        .expect("a number")
}

/// One that fails is redelivered after its back-off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_a_failed_hostile_message_is_redelivered() {
    let world = world().await;
    publish_hostile(&world, HOSTILE[0].1).await;
    world.probe.script(|call| {
        if call.id == "h1" && call.run < 3 {
            Step::Fail("not yet")
        } else {
            Step::Ok
        }
    });
    let inbox = run(&world, "patient", Duration::from_secs(1)).await;
    publish(&world, 1, 3).await;
    effects(&world, 4).await;
    eventually("settled", || world.settled("patient")).await;
    stop(inbox).await;
    assert_eq!(world.probe.runs("patient", "h1"), 3);
    assert_all_done(&world, 4).await;
}

/// The next process gets what a killed one left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_a_hostile_message_is_redelivered_to_the_next_process() {
    let world = world().await;
    publish_hostile(&world, HOSTILE[3].1).await;
    for _ in 0..2 {
        let broker = Nats::new(&world.broker.account().url()).expect("a URL");
        let subscription = Subscription::new("billing", "order.created").ack_wait(Duration::from_secs(1));
        let mut source = broker
            .subscribe(vec![subscription])
            .await
            .expect("subscribed")
            .remove(0);
        let pulled = source.pull(1, Duration::from_secs(60)).await.expect("the broker");
        assert_eq!(pulled[0].0.headers.get("Nats-Msg-Id"), Some(&b"h4"[..]));
        assert_eq!(pulled[0].0.payload.as_deref(), Some(&b"{\"order_id\":\"hostile\"}"[..]));
    }
    let inbox = run(&world, "billing", Duration::from_secs(1)).await;
    effects(&world, 1).await;
    eventually("settled", || world.settled("billing")).await;
    stop(inbox).await;
}
