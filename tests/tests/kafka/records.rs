//! Records: headers, keys, tombstones, large payloads, codecs, and omni-box's format.

use std::time::Duration;

use inbox_runtime::{Broker, Bytes, Inbox, Lease, Message, Outcome, Source, Subscription};
use inbox_tests::{Order, Step, TestBroker, TestDatabase, next, nothing_more};

use super::{KafkaWorld, world};

/// An inbox that runs a handler of this test program.
async fn local_inbox(world: &KafkaWorld, group: &str) -> Inbox {
    let builder = Inbox::builder()
        .store(world.database.pool())
        .broker(world.broker.connect())
        .state(world.probe.clone())
        .groups([group]);
    builder.build().await.expect("an inbox")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_f31_id_headers_may_be_null_missing_or_repeated() {
    let world = KafkaWorld::new().await;
    let order = || Order::new("o").to("order.created");
    let mut null_id = order();
    null_id.headers.append_null("message_id");
    let mut null_and_other = order().header("event_id", "e1");
    null_and_other.headers.append_null("message_id");
    for message in [
        order().header("event_id", "e0").header("event_id", "e0"),
        order().header("event_id", "1").header("event_id", "2"),
        null_id,
        null_and_other,
        order(),
        order().header("message_id", &b"\xff"[..]),
    ] {
        world.broker.publish(message).await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    let mut outcomes = Vec::new();
    for _ in 0..6 {
        outcomes.push(next(&mut inbox).await);
    }
    use Outcome::{DeadLettered, Processed};
    assert_eq!(
        outcomes,
        [Processed, DeadLettered, Processed, Processed, Processed, DeadLettered]
    );
    // L6: without an id the position is the id.
    let position = |offset: u8| format!("{}order.created:0:{offset}", world.broker.prefix());
    for id in ["e0", &position(2), "e1", &position(4)] {
        world.assert_done("billing", id).await;
    }
    let errors: Vec<_> = world
        .letters("billing")
        .await
        .into_iter()
        .map(|letter| letter.error)
        .collect();
    assert!(
        errors.iter().any(|error| error.contains("more than once")),
        "{errors:?}"
    );
    assert!(errors.iter().any(|error| error.contains("not UTF-8")), "{errors:?}");
    assert!(world.settled("billing").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g01_a_recreated_topic_has_other_messages_at_the_same_offsets() {
    let world = KafkaWorld::new().await;
    world.probe.script(|call| match call.id.as_str() {
        "a" => Step::Permanent("refused"),
        _ => Step::Ok,
    });
    world.publish("a").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    inbox.close().await;
    world.broker.delete_topic("order.created").await;
    world.broker.delete_group("billing").await;
    world.publish("c").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "c").await;
    assert_eq!(world.letter("billing").await.message_id.as_deref(), Some("a"));
    assert_eq!(world.letter("billing").await.position.rsplit(':').next(), Some("0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_a_tombstone_that_is_replayed_has_its_key() {
    let world = KafkaWorld::new().await;
    world.broker.create_topic("customer.gone", 1).await;
    let message = Message::tombstone("customer.gone").key("customer-7").id("m1");
    world.broker.publish(message).await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("not yet"),
        _ => Step::Ok,
    });
    let mut inbox = local_inbox(&world, "keyed").await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let letter = world.letter("keyed").await;
    assert_eq!(
        (letter.payload, letter.message_key.as_deref()),
        (None, Some(&b"customer-7"[..]))
    );
    assert!(world.dead_letters().replay(letter.id).await.expect("the database"));
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    let effects = "SELECT count(*) FROM effects WHERE msg_id = 'customer-7'";
    assert_eq!(world.database.number(effects).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_a_tombstone_keeps_its_key_and_is_not_empty() {
    let world = KafkaWorld::new().await;
    let kafka = world.broker.connect();
    for message in [
        Message::tombstone("order.created").key("customer-7"),
        Message::new("order.created", "").header("a", "1"),
    ] {
        kafka.publish(message).await.expect("published");
    }
    let mut sources = kafka
        .subscribe(vec![Subscription::new("reader", "order.created")])
        .await
        .expect("a source");
    let mut deliveries = Vec::new();
    while deliveries.len() < 2 {
        for (delivery, lease) in sources[0].pull(10, Duration::from_secs(5)).await.expect("a delivery") {
            lease.ack().await.expect("acknowledged");
            deliveries.push(delivery);
        }
    }
    assert_eq!(deliveries[0].key.as_deref(), Some(&b"customer-7"[..]));
    assert_eq!(deliveries[0].payload, None);
    assert!(deliveries[0].headers.is_empty() && deliveries[0].published_at.is_some());
    assert_eq!(
        (&deliveries[1].key, &deliveries[1].payload),
        (&None, &Some(Bytes::new()))
    );
    assert_eq!(deliveries[1].headers.get("a"), Some(&b"1"[..]));
    assert_eq!(deliveries[0].subject, "order.created", "without the prefix");
    assert_eq!(
        deliveries[1].position,
        format!("{}order.created:0:1", world.broker.prefix())
    );
    assert!(deliveries[0].redelivered, "the first one may be a redelivery");
    assert!(!deliveries[1].redelivered);
    sources[0].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f71_every_codec_is_supported() {
    let world = KafkaWorld::new().await;
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        let kafka = world.broker.connect().property("compression.type", codec);
        let order = Order::new("o".repeat(2000)).to("order.created").id(codec);
        kafka.publish(order).await.expect("published");
    }
    let mut inbox = world.inbox(&["billing"]).await;
    for codec in codecs {
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{codec}");
        world.assert_done("billing", codec).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f72_a_record_larger_than_a_fetch_is_delivered() {
    let world = world(|kafka| {
        kafka
            .property("fetch.message.max.bytes", "100000")
            .property("message.max.bytes", "10000000")
    })
    .await;
    let settings = [("max.message.bytes", "10000000")];
    world.broker.create_topic_with("order.created", 1, &settings).await;
    for (id, size) in [("small", 10), ("large", 5_000_000), ("last", 10)] {
        let order = Order::new("x".repeat(size)).to("order.created").id(id);
        world.broker.publish(order).await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    for id in ["small", "large", "last"] {
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        world.assert_done("billing", id).await;
    }
}

/// The exact bytes that the producer of omni-box 0.3.1 sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_omni_box_are_read_and_deduplicated() {
    let world = KafkaWorld::new().await;
    let body = r#"{"schema_version":"1.0.0","event_type":"order.created","aggregate_type":"order","aggregate_id":"00000000-0000-0000-0000-000000000008","payload":{"order_id":"1"},"timestamp":"2026-11-29T13:27:41.985338+00:00"}"#;
    let event = Message::new("omni.order", body)
        .key("k2")
        .header("event_id", "01617b23-8c1d-40dc-9230-ab99f8715914")
        .header("event_type", "order.created");
    for _ in 0..2 {
        world.broker.publish(event.clone()).await;
    }
    let raw = Message::new("order.created", r#"{"order_id": "o1"}"#)
        .key("o1")
        .header("message_id", "5886664f-c71d-442e-8d63-c2be2fa70351")
        .header("event_type", "order.created");
    world.broker.publish(raw).await;

    let mut inbox = local_inbox(&world, "omni").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    nothing_more(&mut inbox).await;
    world.assert_done("omni", "01617b23-8c1d-40dc-9230-ab99f8715914").await;
    assert_eq!(world.probe.calls()[0].order.order_id, "1");

    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world
        .assert_done("billing", "5886664f-c71d-442e-8d63-c2be2fa70351")
        .await;
}
