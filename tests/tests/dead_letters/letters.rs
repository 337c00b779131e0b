//! Dead letters: what is in them, when they are written, and what reading and discarding them does.

use std::time::{Duration, SystemTime};

use inbox_runtime::{DeadLetterQuery, DeadLetterReason, DeadLetterStatus, Message, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, lean_suite, next};

lean_suite!(
    everything_is_in_it,
    a_message_that_can_not_be_decoded_is_dead_lettered_at_once,
    a_message_without_a_usable_id_is_dead_lettered_at_once,
    f40_the_acknowledgement_after_it_is_lost,
    it_is_there_before_the_acknowledgement,
    without_it_there_is_no_acknowledgement,
    f95_bytes_survive,
    listing_by_group_and_page,
    discarding,
    f17_the_failed_handlers_writes_are_not_in_it,
);

/// A world with one dead letter, of `m1` for `billing`, which was refused for good.
pub(crate) async fn dead<B: TestBroker, D: TestDatabase>() -> (World<B, D>, i64) {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Permanent("refused"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let letter = world.letter("billing").await;
    (world, letter.id)
}

async fn everything_is_in_it<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let before = SystemTime::now() - Duration::from_secs(1);
    let message = Message::new("order.created", r#"{"order_id":"o1"}"#)
        .id("m1")
        .header("source", "shop")
        .header("source", "again");
    world.broker.publish(message).await;
    world.probe.script(|_| Step::Fail("always"));
    let mut inbox = world.inbox(&["billing"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    let letter = world.letter("billing").await;
    assert_eq!(letter.group, "billing");
    assert_eq!(
        letter.handler,
        format!("inbox_tests::handlers::{}::billing", D::HANDLERS)
    );
    assert_eq!(letter.subject, "order.created");
    assert_eq!(letter.message_id.as_deref(), Some("m1"));
    assert!(!letter.position.is_empty());
    let sources: Vec<_> = letter.headers.get_all("source").collect();
    assert_eq!(sources, [&b"shop"[..], b"again"]);
    assert_eq!(letter.payload.as_deref(), Some(&br#"{"order_id":"o1"}"#[..]));
    assert!(letter.published_at.is_none_or(|at| at > before));
    assert_eq!((letter.reason, letter.attempts), (DeadLetterReason::Exhausted, 3));
    assert_eq!(letter.error, "always");
    assert_eq!(letter.status, DeadLetterStatus::Dead);
    let now = SystemTime::now() + Duration::from_secs(1);
    assert!(before < letter.first_failed_at && letter.first_failed_at <= letter.dead_at && letter.dead_at < now);
    assert_eq!(world.dead_letters().get(letter.id).await.expect("read"), Some(letter));
}

async fn a_message_that_can_not_be_decoded_is_dead_lettered_at_once<B: TestBroker, D: TestDatabase>() {
    for group in ["billing", "at-least-once", "on-persist", "at-most-once"] {
        let world = World::<B, D>::new().await;
        world
            .broker
            .publish(Message::new("order.created", "{ not JSON").id("m1"))
            .await;
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{group}");
        assert_eq!(world.probe.total(), 0);
        let letter = world.letter(group).await;
        // Where the broker doesn't count deliveries, the first one counts as a redelivery, so its attempt is on record.
        let attempts = u32::from(!B::COUNTS && group != "at-most-once");
        assert_eq!(
            (letter.reason, letter.attempts),
            (DeadLetterReason::Rejected, attempts),
            "{group}"
        );
        assert!(letter.error.contains("JSON"), "{}", letter.error);
        assert_eq!(letter.payload.as_deref(), Some(&b"{ not JSON"[..]));
        assert_eq!(inbox.report().acked, 1, "{group}");
        assert!(world.settled(group).await, "{group}");
    }
}

async fn a_message_without_a_usable_id_is_dead_lettered_at_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world
        .broker
        .publish(Message::new("order.created", r#"{"order_id":"o1"}"#))
        .await;
    let mut inbox = world.inbox(&["by-header"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let letter = world.letter("by-header").await;
    assert_eq!((letter.reason, letter.message_id), (DeadLetterReason::Rejected, None));
    assert!(letter.error.contains("order-id"), "{}", letter.error);
    assert!(world.settled("by-header").await);
}

async fn f40_the_acknowledgement_after_it_is_lost<B: TestBroker, D: TestDatabase>() {
    for group in ["billing", "at-least-once", "on-persist"] {
        for step in [Step::Permanent("refused"), Step::LeakNested] {
            let world = World::<B, D>::new().await;
            world.publish("m1").await;
            world.probe.script(move |_| step.clone());
            world.flaky.lose_acks(2);
            let ack_wait = Duration::from_secs(2);
            let mut inbox = world
                .builder(&[group])
                .ack_wait(ack_wait)
                .build()
                .await
                .expect("an inbox");
            for _ in 0..3 {
                assert!(!world.settled(group).await, "{group}");
                assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{group}");
                world.broker.pass(ack_wait).await;
            }
            assert_eq!(world.probe.runs(group, "m1"), 1, "{group}");
            world.letter(group).await;
            assert!(world.settled(group).await, "{group}");
        }
    }
}

async fn it_is_there_before_the_acknowledgement<B: TestBroker, D: TestDatabase>() {
    for (group, payload) in [("billing", r#"{"order_id":"o1"}"#), ("at-most-once", "{ not JSON")] {
        let world = World::<B, D>::new().await;
        world
            .broker
            .publish(Message::new("order.created", payload).id("m1"))
            .await;
        world.probe.script(|_| Step::Permanent("refused"));
        let looker = world.clone();
        world.flaky.watch_acks(move || {
            let world = looker.clone();
            async move { drop(world.letter(group).await) }
        });
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{group}");
        assert!(world.settled(group).await, "{group}");
    }
}

async fn without_it_there_is_no_acknowledgement<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world
        .broker
        .publish(Message::new("order.created", "{ not JSON").id("m1"))
        .await;
    let mut inbox = world.inbox(&["billing"]).await;
    world
        .database
        .exec("ALTER TABLE inbox_dead_letters RENAME TO away")
        .await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(inbox.report().acked, 0);
    assert!(!world.settled("billing").await);
    world
        .database
        .exec("ALTER TABLE away RENAME TO inbox_dead_letters")
        .await;
    world.broker.pass(Duration::from_secs(1)).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter("billing").await.reason, DeadLetterReason::Rejected);
    assert!(world.settled("billing").await);
}

async fn f95_bytes_survive<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let payload = &b"{\"order_id\":\"a\\u0000b\"} \xff\x00"[..];
    let bytes = &b"\xff\xfe\x00"[..];
    let message = Message::new("order.created", payload)
        .id("m1")
        .header("raw", bytes)
        .header("nul", "a\0b");
    world.broker.publish(message).await;
    let error_with_nul = Message::new("order.created", r#"{"order_id":"o2"}"#).id("m2");
    world.broker.publish(error_with_nul).await;
    let null = if B::NULLS {
        Message::tombstone("order.created")
    } else {
        Message::new("order.created", "null")
    };
    world.broker.publish(null.id("m3")).await;
    world.broker.publish(Message::new("order.created", "").id("m4")).await;
    world.probe.script(|_| Step::Permanent("a text with \0 in it and ü"));
    let mut inbox = world.inbox(&["billing"]).await;
    for _ in 0..4 {
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    }
    assert!(world.settled("billing").await);
    let letters = world.letters("billing").await;
    assert_eq!(letters.len(), 4);
    assert_eq!(letters[0].payload.as_deref(), Some(payload));
    assert_eq!(letters[0].headers.get("raw"), Some(bytes));
    assert_eq!(letters[0].headers.get("nul"), Some(&b"a\0b"[..]));
    let error = &letters[1].error;
    assert!(
        error.starts_with("a text with ") && error.ends_with(" in it and ü"),
        "{error:?}"
    );
    assert_eq!(letters[2].payload.is_none(), B::NULLS, "a null payload");
    assert_eq!(letters[3].payload.as_deref(), Some(&b""[..]), "an empty one");
}

async fn listing_by_group_and_page<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for number in 0..5 {
        world.publish(&format!("m{number}")).await;
    }
    world.probe.script(|_| Step::Permanent("refused"));
    for group in ["billing", "shipping"] {
        world.inbox(&[group]).await.run_until_idle().await.expect("the broker");
    }
    let letters = world.dead_letters();
    let all = letters.list(DeadLetterQuery::default()).await.expect("read");
    assert_eq!(all.len(), 10);
    assert!(all.is_sorted_by_key(|letter| letter.id), "oldest first");
    let mut after = 0;
    let mut pages = Vec::new();
    loop {
        let query = DeadLetterQuery::default().group("billing").after(after).limit(2);
        let page = letters.list(query).await.expect("read");
        let Some(last) = page.last() else { break };
        after = last.id;
        pages.push(
            page.into_iter()
                .filter_map(|letter| letter.message_id)
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(pages, [vec!["m0", "m1"], vec!["m2", "m3"], vec!["m4"]]);
    let none = letters
        .list(DeadLetterQuery::default().group("nobody"))
        .await
        .expect("read");
    assert_eq!(none, []);
    assert_eq!(letters.get(i64::MAX).await.expect("read"), None);
}

async fn discarding<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Fail("always"));
    let mut inbox = world.inbox(&["billing"]).await;
    for _ in 0..3 {
        next(&mut inbox).await;
    }
    let id = world.letter("billing").await.id;
    assert!(world.dead_letters().discard(id).await.expect("deleted"));
    assert_eq!(world.letters("billing").await, []);
    assert_eq!(world.attempts("billing").await, 0);
    assert!(!world.dead_letters().discard(id).await.expect("looked for"));
    let none = inbox.process_one(Duration::from_millis(300)).await.expect("the broker");
    assert_eq!(none, None, "it is gone for good");
}

async fn f17_the_failed_handlers_writes_are_not_in_it<B: TestBroker, D: TestDatabase>() {
    let (world, _) = dead::<B, D>().await;
    world.assert_untouched("billing", "m1").await;
    assert_eq!(world.letters("billing").await.len(), 1);
}
