//! The four ways to acknowledge: when each does, whether it claims, and what it does with a duplicate, a locked message
//! and a handler that fails.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox_runtime::{AckStrategy, DeadLetterReason, Handled, Outcome};
use inbox_tests::{Settled, Step, TestBroker, TestDatabase, World, eventually, next, suite};
use tokio::sync::Semaphore;

suite!(
    b15_at_most_once_acknowledges_before_it_begins,
    b15_at_most_once_does_not_run_unless_the_acknowledgement_is_confirmed,
    b15_at_most_once_proves_the_database_alive_first,
    b16_on_persist_has_the_dead_letter_before_it_acknowledges,
    b16_on_persist_does_not_acknowledge_when_the_database_failed,
    b16_on_persist_does_not_acknowledge_without_the_dead_letter,
    b19_exactly_once_is_the_default,
    b19_duplicates,
    b19_a_locked_message_is_not_acknowledged,
    b20_acknowledged_after_the_commit,
    b22_without_its_row_a_message_is_new,
    b23_a_failure_leaves_no_row,
    what_the_handler_says_is_committed_and_acknowledged,
);

pub(crate) const EXACTLY_ONCE: &str = "billing";
pub(crate) const ON_SUCCESS: &str = "at-least-once";
pub(crate) const ON_PERSIST: &str = "on-persist";
pub(crate) const AT_MOST_ONCE: &str = "at-most-once";

async fn b15_at_most_once_acknowledges_before_it_begins<B: TestBroker, D: TestDatabase>() {
    // For each strategy: what the broker reports as unsettled while the handler runs.
    for (group, unacked) in [(EXACTLY_ONCE, 1), (ON_SUCCESS, 1), (ON_PERSIST, 1), (AT_MOST_ONCE, 0)] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        let gate = Arc::new(Semaphore::new(0));
        let held = gate.clone();
        world.probe.script(move |_| Step::Gate(held.clone()));
        let mut inbox = world.inbox(&[group]).await;
        let look = async {
            eventually("the handler runs", || async { world.probe.total() == 1 }).await;
            let settled = world.broker.settled(group, "order.created").await;
            assert_eq!(settled, Some(Settled { waiting: 0, unacked }), "{group}");
            gate.add_permits(1);
        };
        let (outcome, ()) = tokio::join!(next(&mut inbox), look);
        assert_eq!(outcome, Outcome::Processed);
        assert!(world.settled(group).await);
    }
}

async fn b15_at_most_once_does_not_run_unless_the_acknowledgement_is_confirmed<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.flaky.lose_acks(1);
    let mut inbox = world.inbox(&[AT_MOST_ONCE]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(world.probe.total(), 0);
    assert_eq!((inbox.report().acked, inbox.report().ack_failures), (0, 1));
    assert!(!world.settled(AT_MOST_ONCE).await);

    world.broker.pass(Duration::from_secs(1)).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.probe.runs(AT_MOST_ONCE, "m1"), 1);
    assert_eq!(world.database.effects(AT_MOST_ONCE, "m1").await, 1);
    assert!(world.settled(AT_MOST_ONCE).await);
}

async fn b15_at_most_once_proves_the_database_alive_first<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for id in ["m1", "m2", "m3"] {
        world.publish(id).await;
    }
    let mut inbox = world.inbox(&[AT_MOST_ONCE]).await;
    world.database.break_down().await;
    for _ in 0..3 {
        assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    }
    assert_eq!(
        (world.probe.total(), inbox.report().acked),
        (0, 0),
        "the backlog is kept"
    );
    world.database.repair().await;

    world.broker.pass(Duration::from_secs(2)).await;
    // In the order in which their back-offs end.
    for _ in 0..3 {
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
    for id in ["m1", "m2", "m3"] {
        assert_eq!(world.probe.runs(AT_MOST_ONCE, id), 1);
        assert_eq!(world.database.effects(AT_MOST_ONCE, id).await, 1);
    }
    assert!(world.settled(AT_MOST_ONCE).await);
}

async fn b16_on_persist_has_the_dead_letter_before_it_acknowledges<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Fail("halfway"));
    let letters = Arc::new(Mutex::new(Vec::new()));
    let (seen, looker) = (letters.clone(), world.clone());
    world.flaky.watch_acks(move || {
        let (seen, world) = (seen.clone(), looker.clone());
        async move {
            let found = world.letters(ON_PERSIST).await.len();
            let effects = world.database.effects(ON_PERSIST, "m1").await;
            seen.lock().unwrap().push((found, effects));
        }
    });
    let mut inbox = world.inbox(&[ON_PERSIST]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(
        *letters.lock().unwrap(),
        [(1, 0)],
        "one acknowledgement, after the dead letter"
    );
    assert!(world.settled(ON_PERSIST).await);
}

async fn b16_on_persist_does_not_acknowledge_when_the_database_failed<B: TestBroker, D: TestDatabase>() {
    // It can't be used at all (without a claim that shows first in the handler, or even before it), or it fails in the
    // handler.
    for broken in [true, false] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        let mut inbox = world.inbox(&[ON_PERSIST]).await;
        if broken {
            world.database.break_down().await;
            assert_eq!(next(&mut inbox).await, Outcome::Deferred);
            world.database.repair().await;
        } else {
            let fault = Step::raise(world.database.fault().await);
            world.probe.script(move |_| fault.clone());
            assert_eq!(next(&mut inbox).await, Outcome::Deferred);
            assert_eq!(world.probe.total(), 1);
        }
        assert_eq!(world.letters(ON_PERSIST).await, []);
        assert_eq!(world.attempts(ON_PERSIST).await, 0);
        assert_eq!(inbox.report().acked, 0);
        assert!(!world.settled(ON_PERSIST).await);

        world.probe.script(|_| Step::Ok);
        world.broker.pass(Duration::from_secs(2)).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        assert_eq!(world.database.effects(ON_PERSIST, "m1").await, 1);
        assert!(world.settled(ON_PERSIST).await);
    }
}

async fn b16_on_persist_does_not_acknowledge_without_the_dead_letter<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Fail("halfway"));
    let mut inbox = world.inbox(&[ON_PERSIST]).await;
    world
        .database
        .exec("ALTER TABLE inbox_dead_letters RENAME TO away")
        .await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(inbox.report().acked, 0);
    assert!(!world.settled(ON_PERSIST).await);

    world
        .database
        .exec("ALTER TABLE away RENAME TO inbox_dead_letters")
        .await;
    world.broker.pass(Duration::from_secs(1)).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter(ON_PERSIST).await.reason, DeadLetterReason::Persisted);
    assert!(world.settled(ON_PERSIST).await);
}

async fn b19_exactly_once_is_the_default<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let inbox = world.inbox(&[EXACTLY_ONCE]).await;
    let strategies: Vec<_> = inbox.handlers().map(|meta| meta.ack).collect();
    assert_eq!(strategies, [AckStrategy::ExactlyOnce]);
}

async fn b19_duplicates<B: TestBroker, D: TestDatabase>() {
    for (group, second, runs, rows) in [
        (EXACTLY_ONCE, Outcome::Duplicate, 1, 1),
        (ON_SUCCESS, Outcome::Processed, 2, 0),
        (ON_PERSIST, Outcome::Processed, 2, 0),
        (AT_MOST_ONCE, Outcome::Processed, 2, 0),
    ] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world.publish("m1").await;
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{group}");
        assert_eq!(next(&mut inbox).await, second, "{group}");
        assert_eq!(world.probe.runs(group, "m1"), runs, "{group}");
        assert_eq!(world.database.effects(group, "m1").await, i64::from(runs), "{group}");
        assert_eq!(world.database.inbox(group, "m1").await, rows, "{group}");
        assert_eq!(inbox.report().acked, 2, "{group}");
        assert!(world.settled(group).await, "{group}");
    }
}

async fn b19_a_locked_message_is_not_acknowledged<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&[EXACTLY_ONCE]).await;
    let lock = world.database.lock_claim(EXACTLY_ONCE, "m1").await;
    let outcome = next(&mut inbox).await;
    assert!(matches!(outcome, Outcome::Locked | Outcome::Deferred), "{outcome}");
    assert_eq!((world.probe.total(), inbox.report().acked), (0, 0));
    assert!(!world.settled(EXACTLY_ONCE).await);
    world.database.unlock(lock).await;

    world.broker.pass(Duration::from_secs(2)).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done(EXACTLY_ONCE, "m1").await;
    assert_eq!(world.attempts(EXACTLY_ONCE).await, 0);
    assert!(world.settled(EXACTLY_ONCE).await);
}

async fn b20_acknowledged_after_the_commit<B: TestBroker, D: TestDatabase>() {
    for (group, effects_at_ack) in [(EXACTLY_ONCE, 1), (ON_SUCCESS, 1), (ON_PERSIST, 1), (AT_MOST_ONCE, 0)] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (seen_at, database) = (seen.clone(), world.database.clone());
        let wanted = group.to_owned();
        world.flaky.watch_acks(move || {
            let (seen, database, group) = (seen_at.clone(), database.clone(), wanted.clone());
            async move {
                let effects = database.effects(&group, "m1").await;
                seen.lock().unwrap().push(effects);
            }
        });
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        assert_eq!(*seen.lock().unwrap(), [effects_at_ack], "{group}");
    }
}

async fn b22_without_its_row_a_message_is_new<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&[EXACTLY_ONCE]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.database.exec("DELETE FROM inbox_events").await;

    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.probe.runs(EXACTLY_ONCE, "m1"), 2);
    assert_eq!(world.database.effects(EXACTLY_ONCE, "m1").await, 2);
    assert_eq!(world.database.inbox(EXACTLY_ONCE, "m1").await, 1);
}

async fn b23_a_failure_leaves_no_row<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Fail("halfway"));
    let mut inbox = world.inbox(&[EXACTLY_ONCE]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched(EXACTLY_ONCE, "m1").await;
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_events").await, 0);
    assert_eq!(
        world.attempts(EXACTLY_ONCE).await,
        1,
        "the attempt is in a table of its own"
    );
}

async fn what_the_handler_says_is_committed_and_acknowledged<B: TestBroker, D: TestDatabase>() {
    for group in [EXACTLY_ONCE, ON_SUCCESS, ON_PERSIST, AT_MOST_ONCE] {
        let world = World::<B, D>::new().await;
        let said = [Handled::Processed, Handled::Skipped, Handled::Duplicate];
        world
            .probe
            .script(move |call| Step::Return(said[call.order.order_id.len() % 3]));
        let mut inbox = world.inbox(&[group]).await;
        // The orders' ids are `order-` and that: lengths 7, 8 and 9.
        for (id, outcome) in [
            ("mmm", Outcome::Processed),
            ("m", Outcome::Skipped),
            ("mm", Outcome::Duplicate),
        ] {
            world.publish(id).await;
            assert_eq!(next(&mut inbox).await, outcome, "{group}");
            assert_eq!(world.database.effects(group, id).await, 1, "{group}");
        }
        assert_eq!(inbox.report().acked, 3, "{group}");
        assert!(world.settled(group).await, "{group}");
    }
}

/// On SQLite a lock is one on the whole file, so it keeps every strategy from its transaction, and none may acknowledge.
mod sqlite {
    use inbox_tests::{EmbeddedFile, SqliteFile};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn b19_nothing_is_acknowledged_while_the_file_is_locked() {
        for group in [EXACTLY_ONCE, ON_SUCCESS, ON_PERSIST, AT_MOST_ONCE] {
            let world = World::<EmbeddedFile, SqliteFile>::new().await;
            world.publish("m1").await;
            let mut inbox = world.inbox(&[group]).await;
            let lock = world.database.lock_claim(group, "m1").await;
            assert_eq!(next(&mut inbox).await, Outcome::Deferred, "{group}");
            assert_eq!((world.probe.total(), inbox.report().acked), (0, 0), "{group}");
            assert!(!world.settled(group).await, "{group}");
            world.database.unlock(lock).await;

            world.broker.pass(Duration::from_secs(2)).await;
            assert_eq!(next(&mut inbox).await, Outcome::Processed, "{group}");
            assert_eq!(world.database.effects(group, "m1").await, 1, "{group}");
            assert!(world.settled(group).await, "{group}");
        }
    }
}
