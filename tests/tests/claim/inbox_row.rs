//! The inbox row: inserted first, held until the end of the transaction, and the answer when it is there already.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{ClaimError, Inbox, Outcome, claim, migrate, sqlx::error::ErrorKind};
use inbox_tests::{
    Settled, Step, TestBroker, TestConnection, TestDatabase, World, eventually, next, nothing_more, suite,
};
use tokio::sync::Semaphore;

suite!(
    a5_the_five_steps_in_one_annotated_function,
    a5_b24_the_five_steps_on_a_transaction_of_ones_own,
    a7_b6_the_key_is_the_group_and_the_id,
    a8_a_second_delivery_waits_for_the_end_of_the_first,
    a8_of_two_deliveries_at_once_the_second_waits_for_the_first,
    a8_a_delivery_that_waits_too_long_is_redelivered,
    a9_b8_after_a_duplicate_the_transaction_goes_on,
    b10_the_handler_has_the_transaction_of_the_row,
    a5_a_claim_by_hand_takes_only_what_can_be_stored,
    g50_the_time_of_a_row_is_that_of_its_claim,
);

async fn a5_the_five_steps_in_one_annotated_function<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("halfway"),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["manual"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("manual", "m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    world.assert_done("manual", "m1").await;
    assert!(world.settled("manual").await);
}

async fn a5_b24_the_five_steps_on_a_transaction_of_ones_own<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    let mut answers = Vec::new();
    for end in ["rollback", "commit", "commit"] {
        let mut tx = world.database.begin().await;
        let claimed = claim(&mut *tx, "billing", "m1").await.expect("the database");
        answers.push(claimed.is_duplicate());
        if !claimed.is_duplicate() {
            tx.effect("billing", "m1").await.expect("an effect");
        }
        match end {
            "commit" => D::commit(tx).await,
            _ => D::rollback(tx).await,
        }
    }
    assert_eq!(answers, [false, false, true]);
    world.assert_done("billing", "m1").await;

    // The runtime knows what was claimed by hand.
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(world.probe.total(), 0);
    assert!(world.settled("billing").await);
}

async fn a7_b6_the_key_is_the_group_and_the_id<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    let insert = |group: &str, id: &str| {
        format!("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('{group}', '{id}', 1)")
    };
    for (group, id) in [("g1", "m1"), ("g1", "m2"), ("g2", "m1")] {
        world.database.exec(&insert(group, id)).await;
    }
    let again = world.database.try_exec(&insert("g1", "m1")).await;
    let error = again.expect_err("the pair is there already").into_database_error();
    assert!(error.is_some_and(|error| error.kind() == ErrorKind::UniqueViolation));
}

async fn a8_a_second_delivery_waits_for_the_end_of_the_first<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    for (id, commits, expected, runs) in [
        ("m1", true, Outcome::Duplicate, 0),
        ("m2", false, Outcome::Processed, 1),
    ] {
        let mut tx = world.database.begin().await;
        assert!(
            !claim(&mut *tx, "billing", id)
                .await
                .expect("the database")
                .is_duplicate()
        );
        tx.effect("billing", id).await.expect("an effect");
        world.publish(id).await;
        let first = async {
            eventually("it is delivered", async || {
                world.broker.settled("billing", "order.created").await == Some(Settled { waiting: 0, unacked: 1 })
            })
            .await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!world.settled("billing").await, "settled on a guess");
            assert_eq!(world.probe.runs("billing", id), 0);
            if commits {
                D::commit(tx).await;
            } else {
                D::rollback(tx).await;
            }
        };
        let (outcome, ()) = tokio::join!(unlocked(&mut inbox), first);
        assert_eq!(outcome, expected, "{id}");
        assert_eq!(world.probe.runs("billing", id), runs, "{id}");
        world.assert_done("billing", id).await;
        assert!(world.settled("billing").await);
    }
}

/// The next outcome that isn't `locked` (on SQLite, where the whole file is, `deferred`): the wait has a bound, which a busy
/// machine may reach.
async fn unlocked(inbox: &mut Inbox) -> Outcome {
    loop {
        match next(inbox).await {
            Outcome::Locked | Outcome::Deferred => {}
            outcome => return outcome,
        }
    }
}

async fn a8_of_two_deliveries_at_once_the_second_waits_for_the_first<B: TestBroker, D: TestDatabase>() {
    for (step, runs, failed) in [(Step::Ok, 1, 0), (Step::Fail("in the end"), 2, 1)] {
        let world = World::<B, D>::new().await;
        let gate = Arc::new(Semaphore::new(0));
        world.probe.script({
            let gate = gate.clone();
            move |call| match call.run {
                1 => Step::After(gate.clone(), Box::new(step.clone())),
                _ => Step::Ok,
            }
        });
        world.broker.spread("order.created").await;
        // It has several workers.
        let inbox = world.builder(&["audit"]).spawn().await.expect("an inbox");
        world.publish("m1").await;
        world.publish("m1").await;
        let out = Some(Settled { waiting: 0, unacked: 2 });
        eventually("both are out", async || world.broker.settled("audit", ">").await == out).await;
        eventually("one runs", async || world.probe.total() == 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(world.probe.total(), 1);
        let left = world.broker.settled("audit", ">").await.expect("the group");
        assert_eq!(left.waiting + left.unacked, 2, "settled on a guess: {left:?}");
        assert_eq!(inbox.report().duplicate, 0);

        gate.add_permits(1);
        eventually("both are settled", async || {
            world.broker.settled("audit", ">").await == Some(Settled::ALL)
        })
        .await;
        assert_eq!(world.probe.runs("audit", "m1"), runs);
        world.assert_done("audit", "m1").await;
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert_eq!(
            (report.processed, report.duplicate, report.failed),
            (1, 1, failed),
            "{report}"
        );
    }
}

async fn a8_a_delivery_that_waits_too_long_is_redelivered<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    let mut tx = world.database.begin().await;
    let claimed = claim(&mut *tx, "billing", "m1").await.expect("the database");
    assert!(!claimed.is_duplicate());
    world.publish("m1").await;
    let outcome = next(&mut inbox).await;
    assert!(matches!(outcome, Outcome::Locked | Outcome::Deferred), "{outcome}");
    assert_eq!(
        world.broker.settled("billing", "order.created").await,
        Some(Settled { waiting: 0, unacked: 1 })
    );
    D::rollback(tx).await;
    assert_eq!(unlocked(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn a9_b8_after_a_duplicate_the_transaction_goes_on<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    let mut tx = world.database.begin().await;
    let first = claim(&mut *tx, "billing", "m1").await.expect("the database");
    assert!(!first.is_duplicate());
    D::commit(tx).await;

    let mut tx = world.database.begin().await;
    let second = claim(&mut *tx, "billing", "m1").await.expect("an answer, not an error");
    assert!(second.is_duplicate());
    tx.effect("billing", "later").await.expect("a later statement");
    let other = claim(&mut *tx, "billing", "m2").await.expect("another claim");
    assert!(!other.is_duplicate());
    D::commit(tx).await;
    assert_eq!(world.database.effects("billing", "later").await, 1);
    assert_eq!(world.database.inbox("billing", "m2").await, 1);
}

async fn b10_the_handler_has_the_transaction_of_the_row<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    world.probe.script({
        let gate = gate.clone();
        move |call| match call.run {
            // The handler sees the row that nobody else sees yet.
            1 => Step::Swallow(
                "INSERT INTO effects (grp, msg_id) SELECT 'seen', message_id FROM inbox_events",
                Box::new(Step::Gate(gate.clone())),
            ),
            _ => Step::Ok,
        }
    });
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    let outside = async {
        eventually("the handler runs", async || world.probe.total() == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.assert_untouched("billing", "m1").await;
        assert_eq!(world.database.effects("seen", "m1").await, 0);
        gate.add_permits(1);
    };
    let (outcome, ()) = tokio::join!(next(&mut inbox), outside);
    assert_eq!(outcome, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.database.effects("seen", "m1").await, 1);
    nothing_more(&mut inbox).await;
}

async fn a5_a_claim_by_hand_takes_only_what_can_be_stored<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    let mut tx = world.database.begin().await;
    for (group, id) in [
        ("billing", ""),
        ("billing", " \t"),
        ("billing", "a\0b"),
        ("a b", "m1"),
        ("", "m1"),
    ] {
        let refused = claim(&mut *tx, group, id).await;
        assert!(
            matches!(refused, Err(ClaimError::Invalid(_))),
            "{group:?} {id:?}: {refused:?}"
        );
    }
    D::commit(tx).await;
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_events").await, 0);
}

/// It is before the handler's run, not after it: the commit is later by as long as the handler takes.
async fn g50_the_time_of_a_row_is_that_of_its_claim<B: TestBroker, D: TestDatabase>() {
    // Milliseconds by the database's clock, as the guide compares them.
    let (now, stamped) = match D::HANDLERS {
        "sqlite" => ("CAST(unixepoch('subsec') * 1000 AS INTEGER)", "processed_at"),
        _ => (
            "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            "floor(extract(epoch FROM processed_at) * 1000)::bigint",
        ),
    };
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |_| Step::Gate(wait.clone()));
    let mut inbox = world.inbox(&["billing"]).await;
    let clock = async || world.database.number(&format!("SELECT {now}")).await;
    let before = clock().await;
    world.publish("m1").await;
    let outside = async {
        eventually("the handler runs", async || world.probe.total() == 1).await;
        let running = clock().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        gate.add_permits(1);
        running
    };
    let (outcome, running) = tokio::join!(next(&mut inbox), outside);
    assert_eq!(outcome, Outcome::Processed);
    let time = world
        .database
        .number(&format!("SELECT {stamped} FROM inbox_events"))
        .await;
    assert!((before..=running).contains(&time), "{before} {time} {running}");
    assert!(time < clock().await, "earlier than the commit");
}
