//! A handler that fails, however it does: neither row nor effect is left, and the message is redelivered as if it were new.

use std::time::Duration;

use inbox_runtime::{DeadLetterReason, Outcome};
use inbox_tests::{Settled, Step, TestBroker, TestDatabase, World, eventually, next, nothing_more, suite};

suite!(
    a4_a6_b7_row_and_effect_are_both_there_or_neither,
    a10_after_an_error_there_is_no_row,
    a10_after_a_panic_there_is_no_row,
    a10_after_a_timeout_there_is_no_row,
    a10_after_a_dropped_future_there_is_no_row,
    b4_no_effect_after_the_failure_and_one_after_the_redelivery,
    b18_the_effect_is_once_and_the_runs_are_not,
    b21_a_call_outside_is_repeated_and_has_a_stable_key,
    b23_the_inbox_has_no_record_of_a_failure,
    f17_the_dead_letter_is_not_in_the_failed_transaction,
    f18_each_attempt_has_a_transaction_of_its_own,
    f38_a_handler_that_asks_to_be_called_again_is_called_again,
);

async fn a4_a6_b7_row_and_effect_are_both_there_or_neither<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world
        .database
        .exec(
            "CREATE TABLE parents (id INTEGER PRIMARY KEY); CREATE TABLE children (parent INTEGER NOT NULL REFERENCES \
             parents (id) DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    let mut inbox = world.inbox(&["billing"]).await;
    for (id, step) in [
        ("error", Step::Fail("after the effect")),
        ("panic", Step::Panic("after the effect")),
        (
            "statement",
            Step::Exec("INSERT INTO effects (grp, msg_id) VALUES ('billing', NULL)"),
        ),
        (
            "nested",
            Step::Nested("INSERT INTO effects (grp, msg_id) VALUES ('billing', NULL)", true),
        ),
        // Refused when it is committed, not before.
        ("commit", Step::Exec("INSERT INTO children (parent) VALUES (1)")),
    ] {
        world.probe.script(move |call| match call.run {
            1 => step.clone(),
            _ => Step::Ok,
        });
        world.publish(id).await;
        assert_eq!(next(&mut inbox).await, Outcome::Failed, "{id}");
        world.assert_untouched("billing", id).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{id}");
        world.assert_done("billing", id).await;
    }
    assert!(world.settled("billing").await);
}

async fn a10_after_an_error_there_is_no_row<B: TestBroker, D: TestDatabase>() {
    fails_then_succeeds::<B, D>("billing", Step::Fail("halfway")).await;
}

async fn a10_after_a_panic_there_is_no_row<B: TestBroker, D: TestDatabase>() {
    fails_then_succeeds::<B, D>("billing", Step::Panic("halfway")).await;
}

async fn a10_after_a_timeout_there_is_no_row<B: TestBroker, D: TestDatabase>() {
    fails_then_succeeds::<B, D>("hasty", Step::Hang).await;
}

async fn fails_then_succeeds<B: TestBroker, D: TestDatabase>(group: &str, step: Step) {
    let world = World::<B, D>::new().await;
    world.probe.script(move |call| match call.run {
        1 => step.clone(),
        _ => Step::Ok,
    });
    world.publish("m1").await;
    let mut inbox = world.inbox(&[group]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched(group, "m1").await;
    assert!(!world.settled(group).await);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done(group, "m1").await;
    assert!(world.settled(group).await);
}

async fn a10_after_a_dropped_future_there_is_no_row<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 => Step::Hang,
        _ => Step::Ok,
    });
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    tokio::select! {
        outcome = next(&mut inbox) => panic!("it hangs, and yet ended with {outcome}"),
        () = eventually("the handler runs", async || world.probe.total() == 1) => {}
    }
    world.assert_untouched("billing", "m1").await;
    assert!(!world.settled("billing").await);
    // The same inbox continues on another connection.
    world.lease_runs_out().await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn b4_no_effect_after_the_failure_and_one_after_the_redelivery<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Fail("the network is down"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(world.probe.runs("billing", "m1"), 1, "it had written its effect");
    assert_eq!(world.database.effects("billing", "m1").await, 0);
    world.probe.script(|_| Step::Ok);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn b18_the_effect_is_once_and_the_runs_are_not<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 | 2 => Step::Fail("halfway"),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["patient"]).await;
    for _ in 0..2 {
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
    }
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.probe.runs("patient", "m1"), 3);
    assert_eq!(world.database.effects("patient", "m1").await, 1);
    assert!(world.settled("patient").await);
}

async fn b21_a_call_outside_is_repeated_and_has_a_stable_key<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m2").await;
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m1", 1) => Step::Fail("after the call outside"),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing", "shipping"]).await;
    for _ in 0..5 {
        next(&mut inbox).await;
    }
    world.assert_done("billing", "m1").await;
    // The probe's list stands for side effects outside of the database: no rollback undoes them.
    let keys = |group: &str, id: &str| -> Vec<String> {
        let calls = world.probe.calls().into_iter();
        calls
            .filter(|call| call.group == group && call.id == id)
            .map(|call| call.key)
            .collect()
    };
    let calls = keys("billing", "m1");
    assert_eq!(calls.len(), 2, "the effect is once, the call isn't");
    assert_eq!(calls[0], calls[1]);
    assert_ne!(keys("billing", "m2"), calls[..1], "another message");
    assert_ne!(keys("shipping", "m2"), keys("billing", "m2"), "another group");
}

async fn b23_the_inbox_has_no_record_of_a_failure<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 | 2 => Step::Fail("halfway"),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    for _ in 0..2 {
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
        assert_eq!(world.database.number("SELECT count(*) FROM inbox_events").await, 0);
    }
    assert_eq!(next(&mut inbox).await, Outcome::Processed, "as if it were new");
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn f17_the_dead_letter_is_not_in_the_failed_transaction<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Permanent("never"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    world.assert_untouched("billing", "m1").await;
    let letters = world.letters("billing").await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].reason, letters[0].error.as_str()),
        (DeadLetterReason::Permanent, "never")
    );
    assert_eq!(letters[0].message_id.as_deref(), Some("m1"));
    assert!(world.settled("billing").await);
}

async fn f18_each_attempt_has_a_transaction_of_its_own<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    // Each run writes its number in its own transaction.
    world.probe.script(|call| match call.run {
        1 => Step::Swallow(
            "INSERT INTO effects (grp, msg_id) VALUES ('run', '1')",
            Box::new(Step::Panic("first")),
        ),
        2 => Step::Swallow(
            "INSERT INTO effects (grp, msg_id) VALUES ('run', '2')",
            Box::new(Step::Fail("second")),
        ),
        _ => Step::Exec("INSERT INTO effects (grp, msg_id) VALUES ('run', '3')"),
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    for (run, expected) in [("1", 0), ("2", 0), ("3", 1)] {
        assert_eq!(world.database.effects("run", run).await, expected, "run {run}");
    }
    assert!(world.settled("billing").await);
}

async fn f38_a_handler_that_asks_to_be_called_again_is_called_again<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 => Step::RetryAfter(Duration::from_secs(20)),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("billing", "m1").await;
    assert_eq!(
        world.broker.settled("billing", "order.created").await,
        Some(Settled { waiting: 0, unacked: 1 })
    );
    nothing_more(&mut inbox).await;
    world.broker.pass(Duration::from_secs(21)).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.probe.runs("billing", "m1"), 2);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}
