//! What anybody may publish: headers that break the client library's connection, and texts that look like the server's.

use std::time::Duration;

use inbox_runtime::{Broker, Nats, Source, Subscription};
use inbox_tests::{Step, eventually};

use super::{World, assert_all_done, effects, publish, run, server, stop, world, world_on};

const HOSTILE: [(&str, &[u8]); 7] = [
    ("h1", b"NATS/1.0\r\nNats-Msg-Id: h1\r\nX: \xff\r\n\r\n"),
    ("h2", b"NATS/1.0\r\nNats-Msg-Id: h2\r\nbad name: x\r\n\r\n"),
    ("h3", b"NATS/1.0\r\nNats-Msg-Id: h3\r\nn\xc3\xa9: x\r\n\r\n"),
    ("h4", b"NATS/1.0\r\nNats-Msg-Id: h4\r\nno colon\r\n\r\n"),
    ("h5", b"NATS/1.0 404 No Messages\r\nNats-Msg-Id: h5\r\n\r\n"),
    ("h6", b"NATS/1.0 abc\r\nNats-Msg-Id: h6\r\n\r\n"),
    ("h7", b"NATS/1.0 409 Consumer Deleted\r\nNats-Msg-Id: h7\r\n\r\n"),
];

async fn publish_hostile(world: &World, headers: &[u8]) {
    let account = world.broker.account();
    account
        .publish_raw("order.created", headers, b"{\"order_id\":\"hostile\"}")
        .await;
}

/// Each among good ones, which must come through; the hostile ones are handled too, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_whatever_is_in_a_header_all_messages_are_handled() {
    let server = server().await;
    let world = world_on(&server).await;
    for (number, (_, headers)) in HOSTILE.into_iter().enumerate() {
        publish(&world, number * 3 + 1, number * 3 + 3).await;
        publish_hostile(&world, headers).await;
    }
    publish(&world, 50, 59).await;
    let inbox = run(&world, "audit", Duration::from_secs(1)).await;
    effects(&world, 38).await;
    for (id, _) in HOSTILE {
        world.assert_done("audit", id).await;
    }
    let report = stop(inbox).await;
    assert_eq!(report.processed, 38, "{report}");
    assert_all_done(&world, 38).await;
    // Five of them cut the connection, each once in every way to deliver it; a storm would be hundreds.
    let connections = server.log().matches("Client connection created").count();
    assert!(connections < 60, "{connections} connections");
}

/// One that fails comes again after its back-off, however often that cuts the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_a_hostile_message_can_fail_and_come_again() {
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

/// A process that starts behind one that ended without a word goes on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_a_hostile_message_is_found_by_the_next_process() {
    let world = world().await;
    publish_hostile(&world, HOSTILE[3].1).await;
    for _ in 0..2 {
        let broker = Nats::new(&world.broker.account().url()).expect("a URL");
        let wish = Subscription::new("billing", "order.created");
        let mut source = broker.subscribe(vec![wish]).await.expect("subscribed").remove(0);
        let pulled = source.pull(1, Duration::from_secs(5)).await.expect("the broker");
        assert_eq!(pulled[0].0.headers.get("Nats-Msg-Id"), Some(&b"h4"[..]));
        assert_eq!(pulled[0].0.payload.as_deref(), Some(&b"{\"order_id\":\"hostile\"}"[..]));
    }
    let inbox = run(&world, "billing", Duration::from_secs(30)).await;
    effects(&world, 1).await;
    eventually("settled", || world.settled("billing")).await;
    stop(inbox).await;
}
