//! Handlers that end, break or lose the transaction that they were lent: it is detected, and nothing is written outside.

use inbox_runtime::{DeadLetterQuery, Outcome, dead_letters};
use inbox_tests::{Step, TestDatabase, eventually, next};

use crate::{World, assert_all_done, handlers, letter};

/// Runs one message whose handler does `step`, and another one that is fine. Returns the error of the dead letter.
async fn broken(step: Step) -> (World, String) {
    let world = World::new().await;
    world
        .probe
        .script(move |call| if call.id == "m1" { step.clone() } else { Step::Ok });
    world.publish("m1").await;
    world.publish("m2").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m2").await;
    assert!(world.settled("billing").await);
    assert_eq!(
        world.database.effects("billing", "late").await,
        0,
        "written outside of the transaction"
    );
    let letter = letter(&world).await;
    assert!(letter.starts_with("broken_transaction: "), "{letter}");
    // The connection that the inbox has returned to the pool can write.
    for _ in 0..5 {
        let read_only: String = inbox_runtime::sqlx::query_scalar("SHOW default_transaction_read_only")
            .fetch_one(&world.database.pool())
            .await
            .expect("a setting");
        assert_eq!(read_only, "off");
    }
    (world, letter)
}

const LATE: &str = "INSERT INTO effects (grp, msg_id) VALUES ('billing', 'late')";

fn swallow(sql: &'static str, next: Step) -> Step {
    Step::Swallow(sql, Box::new(next))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_a_swallowed_failure_is_not_a_success() {
    let (world, letter) = broken(swallow("SELECT 1/0", Step::Ok)).await;
    assert!(letter.contains("its error was ignored"), "{letter}");
    world.assert_untouched("billing", "m1").await;
    // It stops failing, and is replayed.
    world.probe.script(|_| Step::Ok);
    let letters = dead_letters(&world.database.pool());
    let [dead] = &letters.list(DeadLetterQuery::default()).await.expect("read")[..] else {
        panic!("one dead letter");
    };
    assert!(letters.replay(dead.id).await.expect("written"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_all_done(&world, "billing", 2).await;
}

/// Without a failure in between, the statement's own transaction goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_a_failure_in_a_nested_transaction_may_be_ignored() {
    let world = World::new().await;
    world.publish("m1").await;
    world
        .probe
        .script(|_| swallow("SAVEPOINT mine; SELECT 1/0", swallow("ROLLBACK TO mine", Step::Ok)));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_commit_then_ok() {
    let (world, letter) = broken(swallow("COMMIT", Step::Ok)).await;
    assert!(letter.contains("ended the transaction"), "{letter}");
    world.assert_untouched("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_commit_then_error() {
    let (world, letter) = broken(swallow("COMMIT", Step::Fail("and then"))).await;
    assert!(
        letter.contains("ended the transaction") && letter.contains("and then"),
        "{letter}"
    );
    world.assert_untouched("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_rollback_then_ok() {
    let (world, letter) = broken(swallow("ROLLBACK", Step::Ok)).await;
    assert!(letter.contains("ended the transaction"), "{letter}");
    world.assert_untouched("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_rollback_then_error() {
    let (world, letter) = broken(swallow("ROLLBACK", Step::Fail("and then"))).await;
    assert!(
        letter.contains("ended the transaction") && letter.contains("and then"),
        "{letter}"
    );
    world.assert_untouched("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_after_an_own_commit_fails() {
    let (_, letter) = broken(swallow("COMMIT", Step::Exec(LATE))).await;
    assert!(
        letter.contains("ended the transaction") && letter.contains("read-only"),
        "{letter}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_after_an_own_rollback_fails() {
    let (_, letter) = broken(swallow("ROLLBACK", Step::Exec(LATE))).await;
    assert!(
        letter.contains("ended the transaction") && letter.contains("read-only"),
        "{letter}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_after_an_own_rollback_is_swallowed() {
    broken(swallow("ROLLBACK", swallow(LATE, Step::Ok))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_and_chain_does_not_pass() {
    let (_, letter) = broken(swallow("COMMIT AND CHAIN", Step::Ok)).await;
    assert!(letter.contains("ended the transaction"), "{letter}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_before_a_statement_that_fails_does_not_count_as_rolled_back() {
    let (world, letter) = broken(swallow("COMMIT; BEGIN", Step::Exec("SELECT 1/0"))).await;
    assert!(letter.contains("ended the transaction"), "{letter}");
    world.assert_untouched("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaked_nested_transaction() {
    let (world, letter) = broken(Step::LeakNested).await;
    assert!(letter.contains("nested transaction open"), "{letter}");
    world.assert_untouched("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_was_dropped_in_flight() {
    let world = World::new().await;
    world.publish("drop-1").await;
    world.publish("m2").await;
    let mut inbox = handlers::builder(&world, "dropper").build().await.expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    let letter = letter(&world).await;
    assert!(
        letter.contains("broken_transaction") && letter.contains("begin()"),
        "{letter}"
    );
    world.assert_untouched("dropper", "drop-1").await;
    assert_eq!(world.database.effects("dropper", "late").await, 0);
    world.assert_done("dropper", "m2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_transaction_is_committed_or_rolled_back_as_usual() {
    let world = World::new().await;
    world.publish("kept").await;
    world.publish("undone").await;
    world.probe.script(|call| match call.id.as_str() {
        "kept" => Step::Nested("INSERT INTO effects VALUES ('nested', 'kept')", true),
        _ => Step::Nested("INSERT INTO effects VALUES ('nested', 'undone')", false),
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    for id in ["kept", "undone"] {
        world.assert_done("billing", id).await;
    }
    assert_eq!(world.database.effects("nested", "kept").await, 1);
    assert_eq!(world.database.effects("nested", "undone").await, 0);
}

/// The constraint is checked at the commit, which also begins the next transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deferred_constraint_is_the_handlers_failure() {
    let world = World::new().await;
    world
        .database
        .exec("CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        .await;
    for number in 1..=10 {
        world.publish(&format!("m{number}")).await;
    }
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m3" | "m7", 1) => Step::Exec("INSERT INTO strict VALUES (1), (1)"),
        _ => Step::Ok,
    });
    let inbox = world.inbox(&["billing"]).await.spawn();
    eventually("all is settled", || world.settled("billing")).await;
    let report = inbox.report();
    assert_eq!(
        (report.processed, report.failed, report.deferred),
        (10, 2, 0),
        "{report}"
    );
    assert_eq!(world.probe.runs("billing", "m3"), 2);
    inbox.stop();
    inbox.join().await.expect("stopped");
    for number in 1..=10 {
        world.assert_done("billing", &format!("m{number}")).await;
    }
    assert_eq!(world.database.number("SELECT count(*) FROM strict").await, 0);
}
