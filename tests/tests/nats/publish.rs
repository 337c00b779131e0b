//! Publishing: confirmations, deduplication by the server, errors, and messages of other publishers.

use inbox_runtime::{Broker, BrokerError, Inbox, Message, Nats, Outcome};
use inbox_tests::{
    NatsJetStream, Order, Step, TestBroker, eventually, next, nothing_more,
    servers::{Cut, Proxy},
};
use serde_json::json;

use super::{World, monitor, server, through, world, world_of};

/// The handler of `short.created`.
async fn short(world: &World) -> Inbox {
    let builder = world.builder_of(super::handlers::MODULE, &["short"]);
    builder.build().await.expect("an inbox")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_copy_that_the_server_deduplicates_is_reported() {
    let world = world().await;
    world
        .broker
        .account()
        .make_stream("LONG", &["short.created"], json!({}))
        .await;
    let order = Order::new("o1").to("short.created").id("m1");
    let broker = world.broker.connect();
    let first = broker.publish(order.clone()).await.expect("published");
    assert!(!first.duplicate);
    assert!(
        first.position.starts_with("nats:LONG:") && first.position.ends_with(":1"),
        "{first:?}"
    );
    world.probe.script(|_| Step::Permanent("refused"));
    let mut inbox = short(&world).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter("short").await.position, first.position);
    // A copy sent at once is reported as a duplicate.
    let again = Broker::publish(&broker, order).await.expect("answered");
    assert!(again.duplicate, "{again:?}");
    assert_eq!(again.position, first.position);
    nothing_more(&mut inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2a_a_copy_that_the_server_stores_has_no_second_effect() {
    let world = world().await;
    let account = world.broker.account();
    account
        .make_stream("SHORT", &["short.created"], json!({ "duplicate_window": 100_000_000 }))
        .await;
    let broker = world.broker.connect();
    let order = Order::new("o1").to("short.created").id("m1");
    assert!(!broker.publish(order.clone()).await.expect("published").duplicate);
    eventually("the window is over", async || {
        !broker.publish(order.clone()).await.expect("published").duplicate
    })
    .await;
    let mut inbox = short(&world).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    world.assert_done("short", "m1").await;
}

/// The publisher loses its connection before the confirmation, and publishes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2b_a_lost_publish_ack_causes_no_second_effect() {
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let proxy = Proxy::before(server.port()).await;
    let broker = through(&world, &proxy);
    let order = |id: &'static str| Order::new("o1").to("order.created").id(id);
    broker.publish(order("m0")).await.expect("published");
    proxy.cut_once("m1", Cut::Request);
    let lost = broker.publish(order("m1")).await.expect_err("cut");
    assert!(matches!(lost, BrokerError::Unavailable { .. }), "{lost}");
    eventually("it is connected again", || async {
        broker.publish(order("m1")).await.is_ok()
    })
    .await;
    let mut inbox = world.inbox(&["billing"]).await;
    inbox.run_until_idle().await.expect("the broker");
    world.assert_done("billing", "m0").await;
    world.assert_done("billing", "m1").await;
}

/// As nats-outbox publishes them: a user's headers, its own id, and JSON with spaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_nats_outbox_are_deduplicated_by_their_id() {
    let world = world().await;
    let account = world.broker.account();
    let id = "d4ed5092-46d6-4663-bee9-cdc1a8e7e74e";
    let headers = format!("NATS/1.0\r\nn: 5\r\nNats-Msg-Id: {id}\r\ntraceparent: 00-x\r\n\r\n");
    let body = "{\"amount\": 3, \"order_id\": \"é\", \"x\": [1, 2], \"zeta\": 1}";
    account.publish_raw("order.created", &headers, body.as_bytes()).await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", id).await;
    let call = world.probe.calls().remove(0);
    assert_eq!((call.order.order_id.as_str(), call.order.amount), ("é", 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_publish_name_the_cause() {
    let world = world().await;
    let broker = world.broker.connect();
    let nowhere = Message::new("nowhere.at.all", "{}");
    let problem = broker.publish(nowhere).await.expect_err("no stream");
    assert!(matches!(problem, BrokerError::NotNow { .. }), "{problem}");
    let text = problem.to_string();
    assert!(text.contains("no stream holds the subject nowhere.at.all"), "{text}");
    for (message, expected) in [
        (Message::new("order.*", "{}"), "wildcard"),
        (Message::tombstone("order.created"), "null payload"),
        (Message::new("order.created", "{}").header("a", &b"\xff"[..]), "UTF-8"),
    ] {
        let problem = broker.publish(message).await.expect_err(expected);
        assert!(matches!(problem, BrokerError::Refused { .. }), "{problem}");
        assert!(problem.to_string().contains(expected), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_created_only_on_request() {
    let server = server().await;
    let message = || Message::new("order.created", "{}");
    let url = format!("nats://127.0.0.1:{}", server.port());
    let plain = Nats::new(&url).expect("a URL");
    assert!(plain.publish(message()).await.is_err());
    let making = Nats::new(&format!("{url}?create_stream=ORDERS:order.*")).expect("a URL");
    let published = making.publish(message()).await.expect("published");
    assert!(published.position.starts_with("nats:ORDERS:"), "{published:?}");
    plain.publish(message()).await.expect("it is there now");
}

/// Refused, not now, or unavailable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g51_errors_of_publish_are_classified() {
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let account = world.broker.account();
    let broker = world.broker.connect();
    account
        .make_stream("SMALL", &["small.>"], json!({ "max_msg_size": 100 }))
        .await;
    account
        .make_stream("FULL", &["full.>"], json!({ "max_msgs": 1, "discard": "new" }))
        .await;
    let to = |subject: &str, size: usize| Message::new(subject, vec![b'x'; size]);
    broker.publish(to("full.a", 1)).await.expect("published");
    for message in [
        to("order.created", 2_000_000),
        to("small.a", 1_000),
        to("order.created", 1).header("Nats-Expected-Last-Sequence", "77"),
        to("order.created", 1).header("Nats-Expected-Stream", "OTHER"),
    ] {
        let problem = broker.publish(message).await.expect_err("refused");
        assert!(matches!(problem, BrokerError::Refused { .. }), "{problem}");
    }
    for message in [to("nowhere.at.all", 1), to("full.a", 1)] {
        let problem = broker.publish(message).await.expect_err("not now");
        assert!(matches!(problem, BrokerError::NotNow { .. }), "{problem}");
    }
    server.kill();
    let problem = broker
        .publish(to("order.created", 1))
        .await
        .expect_err("nobody is there");
    assert!(matches!(problem, BrokerError::Unavailable { .. }), "{problem}");
}

/// And what was stored is never an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g51_publishing_takes_one_round_trip() {
    let server = server().await;
    let world = world_of(NatsJetStream::on(&server).await).await;
    let broker = world.broker.connect();
    let publish = async |number: usize| {
        let message = Message::new("order.created", "{}").id(format!("m{number}"));
        let published = broker.publish(message).await.expect("published");
        assert!(published.position.ends_with(&format!(":{number}")), "{published:?}");
        published.position
    };
    let first = publish(1).await;
    let received = async || monitor(&server, "/varz").await["in_msgs"].as_u64().expect("a number");
    let before = received().await;
    for number in 2..=100 {
        publish(number).await;
    }
    let received = received().await - before;
    assert!((99..110).contains(&received), "{received} messages");
    // The positions of a recreated stream differ.
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", serde_json::Value::Null).await;
    account.make_stream("TEST", &["order.>"], json!({})).await;
    let broker = Nats::new(&account.url()).expect("a URL");
    let again = broker
        .publish(Message::new("order.created", "{}"))
        .await
        .expect("published");
    assert!(
        again.position.ends_with(":1") && again.position != first,
        "{again:?} {first}"
    );
}
