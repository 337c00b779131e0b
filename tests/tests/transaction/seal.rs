//! A handler that ends the transaction that it was lent: nothing of it is committed, and the dead letter names what it
//! did.

use inbox_runtime::{DeadLetter, DeadLetterReason, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, lean_suite, next};

lean_suite!(
    f01_a_leaked_nested_transaction_is_named,
    f01_nested_transactions_work,
    f01_a_nested_transaction_that_was_rolled_back_works,
);

const WRITE: &str = "INSERT INTO effects (grp, msg_id) VALUES ('billing', 'm1')";

/// Runs `step` on one message, then a sound message, and returns the first one's dead letter.
async fn broken<B: TestBroker, D: TestDatabase>(step: Step) -> (World<B, D>, DeadLetter) {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m2").await;
    world
        .probe
        .script(move |call| if call.id == "m1" { step.clone() } else { Step::Ok });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    world.assert_untouched("billing", "m1").await;
    let letter = world.letter("billing").await;
    assert_eq!(
        (letter.reason, letter.attempts),
        (DeadLetterReason::BrokenTransaction, 1)
    );
    assert_eq!(world.probe.runs("billing", "m1"), 1, "no further attempt would mend it");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m2").await;
    assert!(world.settled("billing").await);
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 1);
    (world, letter)
}

async fn f01_a_leaked_nested_transaction_is_named<B: TestBroker, D: TestDatabase>() {
    let (_, letter) = broken::<B, D>(Step::LeakNested).await;
    assert!(letter.error.contains("nested transaction open"), "{}", letter.error);
}

async fn f01_nested_transactions_work<B: TestBroker, D: TestDatabase>() {
    nested::<B, D>(true, 2).await;
}

async fn f01_a_nested_transaction_that_was_rolled_back_works<B: TestBroker, D: TestDatabase>() {
    nested::<B, D>(false, 1).await;
}

async fn nested<B: TestBroker, D: TestDatabase>(commit: bool, effects: i64) {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(move |_| Step::Nested(WRITE, commit));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.database.effects("billing", "m1").await, effects);
    assert_eq!(world.database.inbox("billing", "m1").await, 1);
    assert!(world.settled("billing").await);
}

/// What is SQLite's own: a statement may roll the transaction back, and a hook refuses a COMMIT.
mod sqlite {
    use inbox_tests::{EmbeddedFile, EmbeddedMemory, SqliteFile};

    use super::*;

    async fn broken(step: Step) -> String {
        super::broken::<EmbeddedMemory, SqliteFile>(step).await.1.error
    }

    fn swallow(sql: &'static str, next: Step) -> Step {
        Step::Swallow(sql, Box::new(next))
    }

    #[tokio::test]
    async fn f01_a_statement_that_rolls_back_is_not_swallowed() {
        let error = broken(swallow(
            "INSERT OR ROLLBACK INTO effects (grp, msg_id) VALUES (NULL, 'x')",
            Step::Ok,
        ))
        .await;
        assert!(error.contains("rolled back while the handler had it"), "{error}");
    }

    #[tokio::test]
    async fn f01_what_is_written_after_it_is_not_committed_by_itself() {
        let error = broken(swallow(
            "INSERT OR ROLLBACK INTO effects (grp, msg_id) VALUES (NULL, 'x')",
            swallow(WRITE, Step::Ok),
        ))
        .await;
        assert!(error.contains("rolled back while the handler had it"), "{error}");
    }

    #[tokio::test]
    async fn f01_commit_by_the_handler_before_it_succeeds() {
        let error = broken(swallow("COMMIT", Step::Ok)).await;
        assert!(error.contains("ran COMMIT"), "{error}");
        assert!(error.contains("nothing was committed"), "{error}");
    }

    #[tokio::test]
    async fn f01_commit_by_the_handler_before_it_fails() {
        let error = broken(swallow("COMMIT", Step::Fail("halfway"))).await;
        assert!(error.contains("ran COMMIT") && error.contains("halfway"), "{error}");
    }

    #[tokio::test]
    async fn f01_commit_by_the_handler_that_returns_its_error() {
        let error = broken(Step::Exec("COMMIT")).await;
        assert!(error.contains("ran COMMIT"), "{error}");
    }

    #[tokio::test]
    async fn f01_writes_and_another_transaction_after_a_commit_are_lost_too() {
        let error = broken(swallow("COMMIT", swallow(WRITE, Step::Ok))).await;
        assert!(error.contains("ran COMMIT"), "{error}");
        let own = "BEGIN; INSERT INTO effects (grp, msg_id) VALUES ('billing', 'm1'); COMMIT";
        let error = broken(swallow("COMMIT", swallow(own, Step::Ok))).await;
        assert!(error.contains("ran COMMIT"), "{error}");
    }

    #[tokio::test]
    async fn f01_rollback_by_the_handler_before_it_succeeds() {
        let error = broken(swallow("ROLLBACK", swallow(WRITE, Step::Ok))).await;
        assert!(error.contains("ran ROLLBACK"), "{error}");
    }

    #[tokio::test]
    async fn f01_rollback_by_the_handler_before_it_fails() {
        let error = broken(swallow("ROLLBACK", swallow(WRITE, Step::Fail("halfway")))).await;
        assert!(error.contains("ran ROLLBACK") && error.contains("halfway"), "{error}");
    }

    #[tokio::test]
    async fn f01_rollback_and_begin_by_the_handler() {
        let error = broken(swallow("ROLLBACK", swallow("BEGIN", swallow(WRITE, Step::Ok)))).await;
        assert!(error.contains("ran ROLLBACK"), "{error}");
    }

    /// A failed statement leaves a SQLite transaction as it was before it, so a handler may go on from there: swallowing
    /// the error is its own decision, and what it wrote before and after is committed. (PostgreSQL aborts the
    /// transaction, and there it is a broken one.)
    #[tokio::test]
    async fn f01_a_plain_failed_statement_is_the_handlers_own_business() {
        let world = World::<EmbeddedFile, SqliteFile>::new().await;
        world.publish("m1").await;
        world
            .probe
            .script(|_| swallow("INSERT INTO effects (grp, msg_id) VALUES (NULL, 'x')", Step::Ok));
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        world.assert_done("billing", "m1").await;
        assert!(world.settled("billing").await);
    }
}
