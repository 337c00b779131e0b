//! The experiment of the founding document, once for each strategy.

use std::time::Duration;

use inbox_runtime::{DeadLetterReason, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, next, suite};

use super::strategies::{AT_MOST_ONCE, EXACTLY_ONCE, ON_PERSIST, ON_SUCCESS};

suite!(
    b13_at_most_once_loses_what_fails,
    b13_on_persist_acknowledges_what_fails,
    b13_on_success_runs_again,
    b13_exactly_once_runs_again,
);

/// What the experiment of the founding document gave: a handler that fails on its first run, then a fresh consumer.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    first: Outcome,
    committed: bool,
    inbox_rows_between: i64,
    second: Option<Outcome>,
    runs: u32,
    invoices: i64,
    inbox_rows: i64,
}

async fn experiment<B: TestBroker, D: TestDatabase>(group: &str) -> (World<B, D>, Row) {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("the second half has a bug"),
        _ => Step::Ok,
    });
    let mut consumer = world.inbox(&[group]).await;
    let first = next(&mut consumer).await;
    let settled = world.settled(group).await;
    assert_eq!(consumer.report().acked == 1, settled, "the report and the broker agree");
    assert_eq!(world.database.effects(group, "m1").await, 0);
    let inbox_rows_between = world.database.inbox(group, "m1").await;
    drop(consumer);

    let mut fresh = world.inbox(&[group]).await;
    let wait = Duration::from_millis(if settled { 300 } else { 5_000 });
    let second = fresh.process_one(wait).await.expect("the broker");
    let row = Row {
        first,
        committed: settled,
        inbox_rows_between,
        second,
        runs: world.probe.runs(group, "m1"),
        invoices: world.database.effects(group, "m1").await,
        inbox_rows: world.database.inbox(group, "m1").await,
    };
    assert!(world.settled(group).await);
    (world, row)
}

async fn b13_at_most_once_loses_what_fails<B: TestBroker, D: TestDatabase>() {
    let (world, row) = experiment::<B, D>(AT_MOST_ONCE).await;
    let lost = Row {
        first: Outcome::Failed,
        committed: true,
        inbox_rows_between: 0,
        second: None,
        runs: 1,
        invoices: 0,
        inbox_rows: 0,
    };
    assert_eq!(row, lost);
    assert_eq!(world.letters(AT_MOST_ONCE).await, []);
}

async fn b13_on_persist_acknowledges_what_fails<B: TestBroker, D: TestDatabase>() {
    let (world, row) = experiment::<B, D>(ON_PERSIST).await;
    let acknowledged = Row {
        first: Outcome::DeadLettered,
        committed: true,
        inbox_rows_between: 0,
        second: None,
        runs: 1,
        invoices: 0,
        inbox_rows: 0,
    };
    assert_eq!(row, acknowledged);
    let letter = world.letter(ON_PERSIST).await;
    assert_eq!((letter.reason, letter.attempts), (DeadLetterReason::Persisted, 1));
    assert_eq!(letter.error, "the second half has a bug");
}

async fn b13_on_success_runs_again<B: TestBroker, D: TestDatabase>() {
    let (world, row) = experiment::<B, D>(ON_SUCCESS).await;
    let again = Row {
        first: Outcome::Failed,
        committed: false,
        inbox_rows_between: 0,
        second: Some(Outcome::Processed),
        runs: 2,
        invoices: 1,
        inbox_rows: 0,
    };
    assert_eq!(row, again);
    assert_eq!(world.attempts(ON_SUCCESS).await, 0);
}

/// B17 too: twice run, the first run's invoice and row rolled back, the second wrote both.
async fn b13_exactly_once_runs_again<B: TestBroker, D: TestDatabase>() {
    let (world, row) = experiment::<B, D>(EXACTLY_ONCE).await;
    let again = Row {
        first: Outcome::Failed,
        committed: false,
        inbox_rows_between: 0,
        second: Some(Outcome::Processed),
        runs: 2,
        invoices: 1,
        inbox_rows: 1,
    };
    assert_eq!(row, again);
    assert_eq!(world.attempts(EXACTLY_ONCE).await, 0);
}
