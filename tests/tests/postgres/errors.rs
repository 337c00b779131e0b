//! Errors are sorted by their SQLSTATE, whatever language the server speaks.

use inbox_runtime::Outcome;
use inbox_tests::{Step, TestDatabase, next};

use crate::{World, settle};

/// Handles one message whose first `times` runs fail so.
async fn raised(sql: &'static str, times: u32) -> (World, Outcome) {
    let world = World::new().await;
    world.publish("m1").await;
    world
        .probe
        .script(move |call| if call.run <= times { Step::Exec(sql) } else { Step::Ok });
    let mut inbox = world.inbox(&["billing"]).await;
    let outcome = next(&mut inbox).await;
    if outcome != Outcome::Processed {
        world.assert_untouched("billing", "m1").await;
        assert!(!world.settled("billing").await);
        assert_eq!(settle(&mut inbox).await, Outcome::Processed);
    }
    world.assert_done("billing", "m1").await;
    assert_eq!(world.probe.runs("billing", "m1"), times + 1);
    (world, outcome)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_f07_a_serialization_failure_gets_a_fresh_transaction_at_once() {
    let sql = "DO $$ BEGIN RAISE EXCEPTION 'konnte Zugriff nicht serialisieren' USING ERRCODE = '40001'; END $$";
    let (world, outcome) = raised(sql, 2).await;
    assert_eq!(outcome, Outcome::Processed);
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_f07_deadlock_and_lock_timeout_too() {
    for sql in [
        "DO $$ BEGIN RAISE EXCEPTION 'Verklemmung entdeckt' USING ERRCODE = '40P01'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION 'konnte Sperre nicht setzen' USING ERRCODE = '55P03'; END $$",
    ] {
        assert_eq!(raised(sql, 2).await.1, Outcome::Processed);
    }
}

/// When three fresh transactions don't help, the message is deferred, and no attempt is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_more_serialization_failures_are_deferred_and_not_counted() {
    let sql = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$";
    let (world, outcome) = raised(sql, 7).await;
    assert_eq!(outcome, Outcome::Deferred);
    assert_eq!(
        world
            .database
            .number("SELECT count(*) FROM inbox_attempts WHERE attempts > 0")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_a_read_only_server_is_nobodys_fault() {
    let sql = "DO $$ BEGIN RAISE EXCEPTION 'schreibgeschützt' USING ERRCODE = '25006'; END $$";
    assert_eq!(raised(sql, 1).await.1, Outcome::Deferred);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_a_unique_violation_is_the_handlers_failure() {
    let sql = "DO $$ BEGIN RAISE EXCEPTION 'doppelter Schlüsselwert' USING ERRCODE = '23505'; END $$";
    assert_eq!(raised(sql, 1).await.1, Outcome::Failed);
}

/// The text of an outage with the code of another error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_the_text_decides_nothing() {
    let sql = "DO $$ BEGIN RAISE EXCEPTION 'connection refused: could not serialize access, deadlock detected' \
               USING ERRCODE = 'P0001'; END $$";
    assert_eq!(raised(sql, 1).await.1, Outcome::Failed);
}
