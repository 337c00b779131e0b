//! A failed statement whose error the handler ignores: what each database makes of it, as the guide says.

use inbox_runtime::{DeadLetterReason, Outcome};
use inbox_tests::{EmbeddedMemory, Step, TestDatabase, World, database_suite, next};

database_suite!(
    g16_a_failed_statement_that_is_swallowed,
    g16_one_in_a_nested_transaction_is_the_same_on_both,
    g16_one_whose_error_is_returned_is_the_same_on_both,
);

/// A constraint refuses it.
const FAILS: &str = "INSERT INTO effects (grp, msg_id) VALUES (NULL, 'x')";
/// Written after it.
const AFTER: &str = "INSERT INTO effects (grp, msg_id) VALUES ('after', 'm1')";

async fn run<D: TestDatabase>(step: Step) -> (World<EmbeddedMemory, D>, Outcome) {
    let world = World::new().await;
    world.publish("m1").await;
    world.probe.script(move |_| step.clone());
    let mut inbox = world.inbox(&["billing"]).await;
    let outcome = next(&mut inbox).await;
    (world, outcome)
}

fn swallow(sql: &'static str, next: Step) -> Step {
    Step::Swallow(sql, Box::new(next))
}

/// PostgreSQL aborts the transaction. SQLite undoes the statement alone, without a trace, so that the rest is committed.
async fn g16_a_failed_statement_that_is_swallowed<D: TestDatabase>() {
    for then in [Step::Ok, swallow(AFTER, Step::Ok)] {
        let goes_on = matches!(then, Step::Swallow(..));
        let (world, outcome) = run::<D>(swallow(FAILS, then)).await;
        let after = world.database.effects("after", "m1").await;
        if D::HANDLERS == "sqlite" {
            assert_eq!((outcome, after), (Outcome::Processed, i64::from(goes_on)));
            world.assert_done("billing", "m1").await;
        } else {
            assert_eq!((outcome, after), (Outcome::DeadLettered, 0));
            world.assert_untouched("billing", "m1").await;
            assert_eq!(
                world.letter("billing").await.reason,
                DeadLetterReason::BrokenTransaction
            );
        }
    }
}

/// What the guide recommends where a failure is expected.
async fn g16_one_in_a_nested_transaction_is_the_same_on_both<D: TestDatabase>() {
    let (world, outcome) = run::<D>(Step::Nested(FAILS, true)).await;
    assert_eq!(outcome, Outcome::Failed, "its error is returned");
    world.assert_untouched("billing", "m1").await;

    let savepoint = "SAVEPOINT mine; INSERT INTO effects (grp, msg_id) VALUES (NULL, 'x')";
    let (world, outcome) = run::<D>(swallow(
        savepoint,
        swallow("ROLLBACK TO mine", swallow(AFTER, Step::Ok)),
    ))
    .await;
    assert_eq!(outcome, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.database.effects("after", "m1").await, 1);
}

async fn g16_one_whose_error_is_returned_is_the_same_on_both<D: TestDatabase>() {
    let (world, outcome) = run::<D>(Step::Exec(FAILS)).await;
    assert_eq!(outcome, Outcome::Failed);
    world.assert_untouched("billing", "m1").await;
}
