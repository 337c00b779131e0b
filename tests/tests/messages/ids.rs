//! The id of a message from end to end: what the inbox row says, which messages are one, and which can't be stored.

use inbox_runtime::{DeadLetterReason, Message, Outcome};
use inbox_tests::{Order, Settled, TestBroker, TestDatabase, World, lean_suite, next};

lean_suite!(
    f27_without_an_id_a_message_is_deduplicated_by_its_position,
    f28_a_blank_id_is_none,
    f29_a_name_that_only_ends_like_one_is_another,
    f30_an_id_that_is_there_twice_must_be_the_same,
    f31_a_null_or_missing_header_is_no_id,
    f32_a_message_whose_id_has_a_nul_is_dead_lettered_and_the_next_is_handled,
    f33_a_message_whose_id_is_too_long_is_dead_lettered_and_the_id_never_cut,
    f34_ids_are_compared_byte_by_byte,
    f35_an_id_of_another_subject_is_reused_not_a_duplicate,
    f35_another_payload_under_the_same_id_is_a_duplicate,
    a_message_with_an_id_that_is_not_utf8_is_dead_lettered,
    a_cloud_event_is_deduplicated_by_id_and_source,
    an_id_from_the_payload,
    an_id_from_a_header_of_choice,
    the_position_as_id_by_request,
);

/// Publishes messages that differ in their headers and payloads only.
async fn publish<B: TestBroker, D: TestDatabase>(world: &World<B, D>, messages: impl IntoIterator<Item = Message>) {
    for message in messages {
        world.broker.publish(message).await;
    }
}

fn order(number: usize) -> Message {
    Order::new(format!("order-{number}")).to("order.created")
}

/// Handles all messages; returns how many were processed, duplicates, and dead letters. Everything must be settled.
async fn handle<B: TestBroker, D: TestDatabase>(world: &World<B, D>, group: &str) -> (u64, u64, u64) {
    let mut inbox = world.inbox(&[group]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert!(world.settled(group).await, "{report}");
    assert_eq!(report.failed + report.deferred + report.locked, 0, "{report}");
    let letters = u64::try_from(world.letters(group).await.len()).expect("a number");
    assert_eq!(letters, report.dead_lettered, "{report}");
    // Never a row without an effect, or the other way round.
    let effects = world.database.number("SELECT count(*) FROM effects").await;
    let rows = world.database.number("SELECT count(*) FROM inbox_events").await;
    assert_eq!((effects.cast_unsigned(), rows), (report.processed, effects), "{report}");
    (report.processed, report.duplicate, report.dead_lettered)
}

async fn f27_without_an_id_a_message_is_deduplicated_by_its_position<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("order.created").await;
    // Two identical bodies are two messages.
    publish(&world, [order(1), order(1)]).await;
    world.flaky.lose_acks(1);
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    // The first one is redelivered and is the same message.
    world.lease_runs_out().await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    let ids: Vec<_> = world.probe.calls().into_iter().map(|call| call.id).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    for id in &ids {
        world.assert_done("billing", id).await;
    }
    assert!(world.settled("billing").await);
}

async fn f28_a_blank_id_is_none<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let blanks = ["", "", " ", " ", "\t"];
    publish(&world, blanks.into_iter().enumerate().map(|(n, id)| order(n).id(id))).await;
    assert_eq!(handle(&world, "billing").await, (5, 0, 0));
    for blank in blanks {
        world.assert_untouched("billing", blank).await;
    }
}

async fn f29_a_name_that_only_ends_like_one_is_another<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(
        &world,
        ["Orig-Nats-Msg-Id", "Orig-Nats-Msg-Id", "nats-msg-id", "NATS-MSG-ID"].map(|name| order(1).header(name, "1")),
    )
    .await;
    // The first two have no id; the other two are one message.
    assert_eq!(handle(&world, "billing").await, (3, 1, 0));
    world.assert_done("billing", "1").await;
}

async fn f30_an_id_that_is_there_twice_must_be_the_same<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(
        &world,
        [
            order(1).header("event_id", "a").header("event_id", "a"),
            order(2).header("event_id", "b").header("event_id", "c"),
            order(3).header("event_id", "d"),
        ],
    )
    .await;
    assert_eq!(handle(&world, "billing").await, (2, 0, 1));
    for (id, done) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        if done {
            world.assert_done("billing", id).await;
        } else {
            world.assert_untouched("billing", id).await;
        }
    }
    rejected_for(&world, "billing", "more than once").await;
}

/// The dead letters of the group were rejected, and say so.
async fn rejected_for<B: TestBroker, D: TestDatabase>(world: &World<B, D>, group: &str, why: &str) {
    for letter in world.letters(group).await {
        assert_eq!(letter.reason, DeadLetterReason::Rejected);
        assert_eq!(letter.message_id, None, "an id that can't be used is none");
        assert!(letter.error.contains(why), "{}", letter.error);
        assert!(letter.payload.is_some_and(|payload| !payload.is_empty()));
        assert!(!letter.headers.is_empty());
    }
}

async fn f31_a_null_or_missing_header_is_no_id<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut null = order(2);
    if B::NULLS {
        null.headers.append_null("message_id");
    }
    publish(&world, [order(1), null, order(3).id("")]).await;
    assert_eq!(handle(&world, "billing").await, (3, 0, 0));
}

async fn f32_a_message_whose_id_has_a_nul_is_dead_lettered_and_the_next_is_handled<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(&world, [order(0).id("a\0b")]).await;
    let good: Vec<String> = (0..100).map(|number| format!("m{number}")).collect();
    publish(&world, good.iter().map(|id| order(1).id(id.clone()))).await;
    publish(&world, [order(0).id("ab")]).await;
    assert_eq!(handle(&world, "billing").await, (101, 0, 1));
    for id in good.iter().map(String::as_str).chain(["ab"]) {
        world.assert_done("billing", id).await;
    }
    rejected_for(&world, "billing", "NUL").await;
}

async fn f33_a_message_whose_id_is_too_long_is_dead_lettered_and_the_id_never_cut<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    // Random, since a database may compress what repeats and so take it.
    let mut random = fastrand::Rng::with_seed(7);
    let mut id = |length: usize| -> String { (0..length).map(|_| random.alphanumeric()).collect() };
    let limit = id(512);
    let mut long = vec![
        format!("{limit}x"),
        format!("{limit}y"),
        id(2700),
        id(10_000),
        "a".repeat(100_000),
    ];
    long.retain(|id| id.len() <= B::LONGEST_HEADER);
    let rejected = long.len() as u64;
    let short = [id(255), limit];
    publish(&world, long.iter().chain(&short).map(|id| order(1).id(id.clone()))).await;
    assert_eq!(handle(&world, "billing").await, (2, 0, rejected));
    for id in &short {
        world.assert_done("billing", id).await;
    }
    rejected_for(&world, "billing", "at most 512").await;
}

async fn f34_ids_are_compared_byte_by_byte<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut ids = vec!["A1", "a1", "\u{e9}", "e\u{301}", "x", "x ", "ss", "ß", "1", "01"];
    ids.retain(|id| !B::TRIMS || id.trim() == *id);
    publish(&world, ids.iter().map(|id| order(1).id(*id))).await;
    assert_eq!(handle(&world, "billing").await, (ids.len() as u64, 0, 0));
    for id in ids {
        assert_eq!(world.probe.runs("billing", id), 1, "{id:?}");
        world.assert_done("billing", id).await;
    }
}

async fn f35_an_id_of_another_subject_is_reused_not_a_duplicate<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["audit"]).await;
    for (subject, outcome) in [
        ("orders.created", Outcome::Processed),
        ("users.created", Outcome::DeadLettered),
        ("orders.created", Outcome::Duplicate),
    ] {
        world.publish_to(subject, "42").await;
        assert_eq!(next(&mut inbox).await, outcome);
    }
    world.assert_done("audit", "42").await;
    assert_eq!(world.probe.runs("audit", "42"), 1);
    let letters = world.letters("audit").await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (
            letters[0].reason,
            letters[0].subject.as_str(),
            letters[0].message_id.as_deref()
        ),
        (DeadLetterReason::IdReused, "users.created", Some("42"))
    );
    assert!(letters[0].error.contains("another subject"), "{}", letters[0].error);
    assert_eq!(world.broker.settled("audit", ">").await, Some(Settled::ALL));
}

async fn f35_another_payload_under_the_same_id_is_a_duplicate<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(&world, [order(1).id("42"), order(2).id("42")]).await;
    assert_eq!(handle(&world, "billing").await, (1, 1, 0));
    assert_eq!(world.probe.calls()[0].order.order_id, "order-1");
}

async fn a_message_with_an_id_that_is_not_utf8_is_dead_lettered<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(&world, [order(1).id(&b"a\xff"[..]), order(2).id("a")]).await;
    assert_eq!(handle(&world, "billing").await, (1, 0, 1));
    world.assert_done("billing", "a").await;
    rejected_for(&world, "billing", "not UTF-8").await;
    let letter = world.letters("billing").await.remove(0);
    assert_eq!(letter.headers.get("message_id"), Some(&b"a\xff"[..]), "kept as it was");
}

async fn a_cloud_event_is_deduplicated_by_id_and_source<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let event = |id: &'static str, source: &'static str| order(1).header("ce-id", id).header("ce-source", source);
    publish(
        &world,
        [
            event("1", "/shop"),
            event("1", "/crm"),
            event("2", "/shop"),
            event("1", "/shop"),
        ],
    )
    .await;
    assert_eq!(handle(&world, "billing").await, (3, 1, 0));
}

async fn an_id_from_the_payload<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(
        &world,
        [
            // The header isn't asked.
            order(1).id("m1"),
            order(1).id("m2"),
            order(2).id("m1"),
            Message::new("order.created", r#"{"amount": 1}"#).id("m3"),
            Message::new("order.created", "not JSON").id("m4"),
        ],
    )
    .await;
    assert_eq!(handle(&world, "by-order").await, (2, 1, 2));
    for id in ["order-1", "order-2"] {
        world.assert_done("by-order", id).await;
    }
    rejected_for(&world, "by-order", "no id at `/order_id`").await;
}

async fn an_id_from_a_header_of_choice<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(
        &world,
        [
            order(1).id("m1").header("order-id", "7"),
            order(2).id("m2").header("Order-Id", "7"),
            order(3).id("m1").header("order-id", "8"),
            order(4).id("m4"),
            order(5).id("m5").header("order-id", " "),
        ],
    )
    .await;
    assert_eq!(handle(&world, "by-header").await, (2, 1, 2));
    for id in ["7", "8"] {
        world.assert_done("by-header", id).await;
    }
    rejected_for(&world, "by-header", "missing or blank").await;
}

async fn the_position_as_id_by_request<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish(&world, [order(1).id("m1"), order(1).id("m1")]).await;
    assert_eq!(handle(&world, "by-position").await, (2, 0, 0));
    world.assert_untouched("by-position", "m1").await;
}
