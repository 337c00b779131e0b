//! The claim of the prefetched message, which is made in the round trip of the commit before it.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{InboxBuilder, InboxHandle, Message, Report};
use inbox_tests::{Settled, Step, TestBroker, TestDatabase, eventually, pool};
use tokio::{runtime::Handle, sync::Semaphore};

use crate::{World, assert_all_done, publish, sessions, world_with};

/// An inbox whose first message is being handled while the second is prefetched.
struct InHand {
    gate: Arc<Semaphore>,
    inbox: InboxHandle,
}

impl InHand {
    /// `m1` does `first` when the gate opens; the others do `rest`.
    async fn with(world: &World, builder: InboxBuilder, first: Step, rest: Step) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let held = Step::After(gate.clone(), Box::new(first));
        world.probe.script(move |call| match (call.id.as_str(), call.run) {
            ("m1", 1) => held.clone(),
            _ => rest.clone(),
        });
        let inbox = builder.build().await.expect("an inbox").spawn();
        eventually("the second is prefetched", || async {
            let settled = world.broker.settled("billing", "order.created").await;
            settled.is_some_and(|settled| settled.unacked >= 2) && world.probe.runs("billing", "m1") == 1
        })
        .await;
        Self { gate, inbox }
    }

    async fn of(world: &World, first: Step) -> Self {
        Self::with(world, world.builder(&["billing"]), first, Step::Ok).await
    }

    /// Opens the gate, and waits until everything is settled.
    async fn settle(self, world: &World) -> Report {
        self.gate.add_permits(1);
        eventually("all is settled", || world.settled("billing")).await;
        self.inbox.stop();
        self.inbox.join().await.expect("stopped")
    }
}

/// How many sessions hold a prefetched claim.
async fn prefetched_claims(world: &World) -> i64 {
    world
        .database
        .number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE \
             '%EXECUTE inbox_claim%' AND state = 'idle in transaction' AND pid <> pg_backend_pid()",
        )
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_message_is_claimed_before_the_one_before_it_is_acknowledged() {
    let world = World::new().await;
    publish(&world, 2).await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (watched, at_ack) = (world.clone(), seen.clone());
    world.flaky.watch_acks(move || {
        // Without an await: the worker would go on meanwhile.
        let ahead = tokio::task::block_in_place(|| Handle::current().block_on(prefetched_claims(&watched)));
        at_ack.lock().expect("no panic").push(ahead);
        std::future::ready(())
    });
    let report = InHand::of(&world, Step::Ok).await.settle(&world).await;
    assert_eq!((report.processed, report.acked), (2, 2), "{report}");
    assert_eq!(*seen.lock().expect("no panic"), [1, 0]);
    assert_all_done(&world, "billing", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a_next_message_that_is_locked_holds_up_the_one_before_it_for_lock_wait_only() {
    let world = World::new().await;
    publish(&world, 2).await;
    let builder = world.builder(&["billing"]).lock_wait(Duration::from_millis(100));
    let running = InHand::with(&world, builder, Step::Ok, Step::Ok).await;
    let lock = world.database.lock_claim("billing", "m2").await;
    running.gate.add_permits(1);
    eventually("the first is acknowledged", || async {
        running.inbox.report().acked == 1
    })
    .await;
    world.assert_done("billing", "m1").await;
    eventually("the second is found to be locked", || async {
        running.inbox.report().locked > 0
    })
    .await;
    world.database.unlock(lock).await;
    let report = running.settle(&world).await;
    assert_eq!(
        (report.processed, report.failed, report.deferred),
        (2, 0, 0),
        "{report}"
    );
    assert_all_done(&world, "billing", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_message_that_is_a_copy_is_a_duplicate() {
    let world = World::new().await;
    publish(&world, 1).await;
    publish(&world, 2).await;
    let report = InHand::of(&world, Step::Ok).await.settle(&world).await;
    assert_eq!((report.processed, report.duplicate), (2, 1), "{report}");
    assert_all_done(&world, "billing", 2).await;
}

/// After some duplicates in a row the runtime looks for the row before it claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_message_after_a_streak_of_duplicates_is_handled() {
    let world = World::new().await;
    for _ in 0..6 {
        publish(&world, 1).await;
    }
    world.publish("m2").await;
    world.publish("m3").await;
    let report = InHand::of(&world, Step::Ok).await.settle(&world).await;
    assert_eq!((report.processed, report.duplicate), (3, 5), "{report}");
    assert_all_done(&world, "billing", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_message_that_cannot_be_decoded_is_not_claimed() {
    let world = World::new().await;
    publish(&world, 1).await;
    world
        .broker
        .publish(Message::new("order.created", "not JSON").id("bad"))
        .await;
    world.publish("m2").await;
    let report = InHand::of(&world, Step::Ok).await.settle(&world).await;
    assert_eq!((report.processed, report.dead_lettered), (2, 1), "{report}");
    world.assert_untouched("billing", "bad").await;
    world.assert_done("billing", "m2").await;
}

/// Whatever is wrong with the transaction that is committed, the next message is not affected.
async fn after_a_failure(step: Step, letter: &str) {
    let world = World::new().await;
    publish(&world, 3).await;
    let report = InHand::of(&world, step).await.settle(&world).await;
    assert_eq!((report.processed, report.dead_lettered), (2, 1), "{report}");
    let found = crate::letter(&world).await;
    assert!(found.contains(letter), "{found}");
    world.assert_untouched("billing", "m1").await;
    world.assert_done("billing", "m2").await;
    world.assert_done("billing", "m3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_a_swallowed_failure_with_a_prefetched_message() {
    let step = Step::Swallow("SELECT 1/0", Box::new(Step::Ok));
    after_a_failure(step, "its error was ignored").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_rollback_with_a_prefetched_message() {
    let step = Step::Swallow("ROLLBACK", Box::new(Step::Ok));
    after_a_failure(step, "ended the transaction").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deferred_constraint_with_a_prefetched_message() {
    let world = World::new().await;
    world
        .database
        .exec(
            "CREATE TABLE parents (id int PRIMARY KEY); \
             CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    publish(&world, 2).await;
    let orphan = Step::Swallow("INSERT INTO children VALUES (1)", Box::new(Step::Ok));
    let report = InHand::of(&world, orphan).await.settle(&world).await;
    // The second attempt of `m1` is fine.
    assert_eq!((report.processed, report.failed), (2, 1), "{report}");
    assert_all_done(&world, "billing", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefetched_claim_is_dropped_with_a_message_that_is_released() {
    let world = World::new().await;
    publish(&world, 2).await;
    let running = InHand::of(&world, Step::Ok).await;
    running.inbox.stop();
    running.gate.add_permits(1);
    let report = running.inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.acked), (1, 1), "{report}");
    world.assert_done("billing", "m1").await;
    world.assert_untouched("billing", "m2").await;
    assert_eq!(
        world.broker.settled("billing", "order.created").await,
        Some(Settled { waiting: 0, unacked: 1 })
    );
    assert_eq!(sessions(&world, "idle in transaction%").await, 0);
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(inbox_tests::next(&mut inbox).await, inbox_runtime::Outcome::Processed);
    assert_all_done(&world, "billing", 2).await;
}

/// Ids are data, however the server reads a backslash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_look_like_sql_are_ids() {
    let ids = [
        "m1".to_owned(),
        "m2'); DROP TABLE effects; --".to_owned(),
        r"back\slash \x41 \'".to_owned(),
        "é\u{1f980}".to_owned(),
        "$1 ${x} %s".to_owned(),
        "x".repeat(512),
    ];
    let world = world_with(|database| {
        let options = database.options().options([("standard_conforming_strings", "off")]);
        pool(options, 10)
    })
    .await;
    for id in &ids {
        world.publish(id).await;
    }
    let report = InHand::of(&world, Step::Ok).await.settle(&world).await;
    assert_eq!(report.processed, 6, "{report}");
    for id in &ids {
        world.assert_done("billing", id).await;
    }
    assert_all_done(&world, "billing", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handlers_own_lock_timeout_is_what_it_was() {
    let world = world_with(|database| pool(database.options().options([("lock_timeout", "5s")]), 10)).await;
    publish(&world, 3).await;
    let same = Step::Exec("SELECT 1/(current_setting('lock_timeout') = '5s')::int");
    let running = InHand::with(&world, world.builder(&["billing"]), same.clone(), same).await;
    let report = running.settle(&world).await;
    assert_eq!((report.processed, report.failed), (3, 0), "{report}");
}

/// The runtime's own prepared statements are deallocated with the handler's: it goes on without, and no message is to blame.
async fn deallocating(then: Step) -> Report {
    let world = World::new().await;
    publish(&world, 4).await;
    let step = Step::Swallow("DEALLOCATE ALL", Box::new(then));
    let running = InHand::with(&world, world.builder(&["billing"]), step.clone(), step).await;
    running.settle(&world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_deallocate_prepared_statements() {
    let report = deallocating(Step::Ok).await;
    assert_eq!(
        (report.processed, report.failed, report.dead_lettered),
        (4, 0, 0),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_deallocates_prepared_statements_and_fails_has_failed() {
    let report = deallocating(Step::Permanent("no")).await;
    assert_eq!((report.processed, report.dead_lettered), (0, 4), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_session_prepares_does_not_stay_with_its_connection() {
    let world = world_with(|database| pool(database.options(), 2)).await;
    publish(&world, 3).await;
    InHand::of(&world, Step::Ok).await.settle(&world).await;
    let left: i64 =
        inbox_runtime::sqlx::query_scalar("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'inbox%'")
            .fetch_one(&world.database.pool())
            .await
            .expect("a number");
    assert_eq!(left, 0);
}
