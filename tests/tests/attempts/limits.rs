//! Attempts: which failures count, how many there are, and what happens after the last.

use std::time::Duration;

use inbox_runtime::{DeadLetterReason, Message, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, eventually, lean_suite, next};

lean_suite!(
    the_last_attempt_ends_in_a_dead_letter,
    unlimited_attempts_never_end_in_one,
    success_deletes_the_attempts,
    f18_each_attempt_has_a_transaction_of_its_own,
    f41_a_duplicate_is_settled_though_its_acknowledgements_are_lost,
    f66_a_poison_record_lets_the_others_pass,
);

async fn the_last_attempt_ends_in_a_dead_letter<B: TestBroker, D: TestDatabase>() {
    for group in ["billing", "at-least-once"] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world.probe.script(|_| Step::Fail("always"));
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Failed, "{group}");
        assert_eq!(next(&mut inbox).await, Outcome::Failed, "{group}");
        assert!(!world.settled(group).await, "{group}");
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{group}");
        assert_eq!(world.probe.runs(group, "m1"), 3, "{group}");
        world.assert_untouched(group, "m1").await;
        let letter = world.letter(group).await;
        assert_eq!(
            (letter.reason, letter.attempts),
            (DeadLetterReason::Exhausted, 3),
            "{group}"
        );
        assert_eq!(letter.error, "always");
        assert_eq!(world.attempts(group).await, 3, "they stay with the dead letter");
        assert!(world.settled(group).await, "{group}");
        let none = inbox.process_one(Duration::from_millis(300)).await.expect("the broker");
        assert_eq!(none, None, "{group}");
    }
}

async fn unlimited_attempts_never_end_in_one<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| {
        if call.run <= 30 {
            Step::Fail("not yet")
        } else {
            Step::Ok
        }
    });
    let mut inbox = world.inbox(&["patient"]).await;
    for _ in 0..30 {
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
    }
    assert_eq!(world.attempts("patient").await, 30);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("patient", "m1").await;
    assert_eq!(world.letters("patient").await, []);
    assert_eq!(world.attempts("patient").await, 0);
    assert!(world.settled("patient").await);
}

async fn success_deletes_the_attempts<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world
        .probe
        .script(|call| if call.run < 3 { Step::Fail("not yet") } else { Step::Ok });
    let mut inbox = world.inbox(&["billing"]).await;
    for (outcome, attempts) in [(Outcome::Failed, 1), (Outcome::Failed, 2), (Outcome::Processed, 0)] {
        assert_eq!(next(&mut inbox).await, outcome);
        assert_eq!(world.attempts("billing").await, attempts);
    }
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
    world.assert_done("billing", "m1").await;
}

async fn f18_each_attempt_has_a_transaction_of_its_own<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 => Step::Panic("the first"),
        2 => Step::Fail("the second"),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("billing", "m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("billing", "m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}

async fn f41_a_duplicate_is_settled_though_its_acknowledgements_are_lost<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.flaky.lose_acks(4);
    let ack_wait = Duration::from_secs(2);
    let builder = world.builder(&["billing"]).ack_wait(ack_wait);
    let mut inbox = builder.build().await.expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    for _ in 0..4 {
        assert!(!world.settled("billing").await);
        world.broker.pass(ack_wait).await;
        assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    }
    assert_eq!(world.probe.runs("billing", "m1"), 1);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.attempts("billing").await, 0);
    assert!(world.settled("billing").await);
}

async fn f66_a_poison_record_lets_the_others_pass<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for number in 0..20 {
        if number == 5 {
            let poison = Message::new("order.created", "{ not JSON").id("m5");
            world.broker.publish(poison).await;
        } else {
            world.publish(&format!("m{number}")).await;
        }
    }
    // And one that can be decoded and always fails.
    world.probe.script(|call| {
        if call.id == "m7" {
            Step::Fail("always")
        } else {
            Step::Ok
        }
    });
    let handle = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("everything is settled", || world.settled("billing")).await;
    assert!(handle.health().ready, "{:?}", handle.health());
    handle.stop();
    let report = handle.join().await.expect("stopped");
    assert_eq!((report.processed, report.dead_lettered), (18, 2), "{report}");
    for number in (0..20).filter(|number| ![5, 7].contains(number)) {
        world.assert_done("billing", &format!("m{number}")).await;
    }
    let letters = world.letters("billing").await;
    let fates: Vec<_> = letters
        .iter()
        .map(|letter| (letter.message_id.as_deref(), letter.reason))
        .collect();
    assert_eq!(
        fates,
        [
            (Some("m5"), DeadLetterReason::Rejected),
            (Some("m7"), DeadLetterReason::Exhausted)
        ]
    );
    assert_eq!(letters[0].payload.as_deref(), Some(&b"{ not JSON"[..]));
    assert_eq!(world.probe.runs("billing", "m5"), 0);
}
