//! A broker may reuse a position, as after a topic was deleted and created again: attempts and dead letters belong to the
//! message.

use inbox_runtime::{DeadLetter, DeadLetterReason, Message, Outcome};
use inbox_tests::{Order, Step, TestBroker, TestDatabase, World, lean_suite, next};

lean_suite!(
    g01_another_message_at_the_position_of_a_dead_letter_runs,
    g01_each_message_that_dies_at_a_position_has_a_letter_of_its_own,
    g01_a_message_with_the_same_id_and_another_payload_is_another_message,
    g01_another_message_at_a_position_has_all_its_attempts,
    g01_what_is_known_of_a_message_is_found_again,
    g01_each_letter_of_a_position_is_replayed_by_itself,
    g01_rows_of_an_earlier_version_do_no_harm,
);

const POSITION: &str = "order.created:0:0";

/// A world whose broker gives every message the same position, and marks each as a possible redelivery.
async fn world<B: TestBroker, D: TestDatabase>() -> World<B, D> {
    let world = World::<B, D>::new().await;
    world.flaky.alter(|delivery| {
        POSITION.clone_into(&mut delivery.position);
        delivery.redelivered = true;
    });
    world
}

/// A world in which `a` is dead-lettered.
async fn dead<B: TestBroker, D: TestDatabase>() -> World<B, D> {
    let world = world::<B, D>().await;
    world.publish("a").await;
    world.probe.script(|_| Step::Permanent("refused"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter("billing").await.position, POSITION);
    world
}

async fn letter_of<B: TestBroker, D: TestDatabase>(world: &World<B, D>, id: &str) -> DeadLetter {
    let letters = world.letters("billing").await;
    let found = letters.iter().find(|letter| letter.message_id.as_deref() == Some(id));
    found
        .unwrap_or_else(|| panic!("no letter of {id}: {letters:?}"))
        .clone()
}

async fn g01_another_message_at_the_position_of_a_dead_letter_runs<B: TestBroker, D: TestDatabase>() {
    let world = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    world.publish("c").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "c").await;
    assert_eq!(world.letter("billing").await.message_id.as_deref(), Some("a"));
    assert!(world.settled("billing").await);
}

async fn g01_each_message_that_dies_at_a_position_has_a_letter_of_its_own<B: TestBroker, D: TestDatabase>() {
    let world = dead::<B, D>().await;
    world.probe.script(|_| Step::Permanent("refused too"));
    let second = Message::new("order.created", r#"{"order_id":"second"}"#)
        .id("b")
        .key("key-b")
        .header("source", "shop-b");
    world.broker.publish(second).await;
    world
        .broker
        .publish(Message::new("order.created", "{ not JSON").id("c"))
        .await;
    let mut inbox = world.inbox(&["billing"]).await;
    for _ in 0..2 {
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    }
    assert_eq!(world.letters("billing").await.len(), 3);
    let (a, b, c) = (
        letter_of(&world, "a").await,
        letter_of(&world, "b").await,
        letter_of(&world, "c").await,
    );
    assert_eq!((a.error.as_str(), a.headers.get("source")), ("refused", None));
    assert_eq!(b.error, "refused too");
    assert_eq!(b.payload.as_deref(), Some(&br#"{"order_id":"second"}"#[..]));
    assert_eq!(b.headers.get("source"), Some(&b"shop-b"[..]));
    assert_eq!(
        (c.reason, c.payload.as_deref()),
        (DeadLetterReason::Rejected, Some(&b"{ not JSON"[..]))
    );
    for letter in [a, b, c] {
        assert_eq!(
            letter.headers.get("message_id"),
            letter.message_id.as_deref().map(str::as_bytes)
        );
    }
    assert!(world.settled("billing").await);
}

async fn g01_a_message_with_the_same_id_and_another_payload_is_another_message<B: TestBroker, D: TestDatabase>() {
    let world = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    world
        .broker
        .publish(Order::new("corrected").to("order.created").id("a"))
        .await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "a").await;
    assert_eq!(world.probe.runs("billing", "a"), 2);
}

async fn g01_another_message_at_a_position_has_all_its_attempts<B: TestBroker, D: TestDatabase>() {
    let world = world::<B, D>().await;
    world.probe.script(|call| match call.id.as_str() {
        "a" => Step::Fail("a fails"),
        _ if call.run < 3 => Step::Fail("c fails"),
        _ => Step::Ok,
    });
    world.publish("a").await;
    let mut inbox = world.inbox(&["billing"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    world.publish("c").await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Processed] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    world.assert_done("billing", "c").await;
    let letter = world.letter("billing").await;
    assert_eq!((letter.message_id.as_deref(), letter.attempts), (Some("a"), 3));
    assert!(letter.first_failed_at <= letter.dead_at);
    assert!(world.settled("billing").await);
}

async fn g01_what_is_known_of_a_message_is_found_again<B: TestBroker, D: TestDatabase>() {
    let world = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    // The same message is redelivered: its acknowledgement was lost.
    world.publish("a").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.probe.runs("billing", "a"), 1);
    world.letter("billing").await;
    assert!(world.settled("billing").await);
}

async fn g01_each_letter_of_a_position_is_replayed_by_itself<B: TestBroker, D: TestDatabase>() {
    let world = dead::<B, D>().await;
    world.publish("b").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let (a, b) = (letter_of(&world, "a").await, letter_of(&world, "b").await);
    world.probe.script(|call| match call.id.as_str() {
        "a" => Step::Permanent("refused again"),
        _ => Step::Ok,
    });
    for letter in [&a, &b] {
        assert!(world.dead_letters().replay(letter.id).await.expect("marked"));
    }
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.dead_lettered), (1, 1), "{report}");
    world.assert_done("billing", "b").await;
    let left = world.letter("billing").await;
    assert_eq!(
        (left.id, left.error.as_str()),
        (a.id, "refused again"),
        "it is the same letter"
    );
    assert_eq!((left.payload, left.headers), (a.payload, a.headers));
}

async fn g01_rows_of_an_earlier_version_do_no_harm<B: TestBroker, D: TestDatabase>() {
    let world = dead::<B, D>().await;
    // Its letter as the second migration left it, with an attempt that was used up.
    let letter = world.letter("billing").await;
    world
        .database
        .exec(&format!(
            "UPDATE inbox_dead_letters SET fingerprint = 0; INSERT INTO inbox_attempts (consumer_group, handler, position, \
             attempts) VALUES ('billing', '{}', '{POSITION}', 3)",
            letter.handler
        ))
        .await;
    world.probe.script(|_| Step::Ok);
    world.publish("c").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.probe.script(|_| Step::Permanent("refused again"));
    assert!(world.dead_letters().replay(letter.id).await.expect("marked"));
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter("billing").await.id, letter.id);
    world.probe.script(|_| Step::Ok);
    assert!(world.dead_letters().replay(letter.id).await.expect("marked"));
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.letters("billing").await, []);
    world.assert_done("billing", "a").await;
}
