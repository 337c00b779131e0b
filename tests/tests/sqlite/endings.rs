//! What a handler does to its transaction and its connection, and how each then ends.

use std::{sync::Arc, time::Duration};

use futures_util::TryStreamExt;
use inbox_runtime::{
    DeadLetterReason, Meta, Outcome, inbox_handler,
    sqlx::{self, SqliteConnection},
};
use inbox_tests::{Order, Step, TestBroker, TestConnection, TestDatabase, next};
use tokio::{sync::Semaphore, time::timeout};

use super::{HANG, Here, here};

const WRITE: &str = "INSERT INTO effects (grp, msg_id) VALUES ('raw', 'm1')";

const ENDLESS: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

fn swallow(sql: &'static str, next: Step) -> Step {
    Step::Swallow(sql, Box::new(next))
}

/// How a handler ends after what it has done: the group whose handler it is, the step, and a word of its error.
fn endings() -> [(&'static str, Step, &'static str); 4] {
    [
        ("billing", Step::Ok, ""),
        ("billing", Step::Fail("halfway"), "halfway"),
        ("hasty", Step::Hang, "took longer than its timeout"),
        ("billing", Step::Panic("dropped a cup"), "dropped a cup"),
    ]
}

/// What the connection is like, as the next message's handler sees it.
const LOOK: &str = "INSERT INTO effects (grp, msg_id) SELECT 'look', printf('%s %s %s %s %s %s', \
    (SELECT query_only FROM pragma_query_only), (SELECT locking_mode FROM pragma_locking_mode), \
    (SELECT ignore_check_constraints FROM pragma_ignore_check_constraints), 'a' LIKE 'A', \
    (SELECT group_concat(name) FROM pragma_database_list), (SELECT group_concat(name) FROM temp.sqlite_schema))";

/// Runs those statements and then `ending` on one message, and then two sound ones that see the connection before and
/// after. Returns the first one's outcome and the world.
async fn run(sql: &'static str, group: &'static str, ending: &Step) -> (Here, Outcome) {
    let world = Here::new().await;
    let after = ending.clone();
    world
        .probe
        .script(move |call| match (call.group.as_str(), call.id.as_str()) {
            (_, "look") => Step::Exec(LOOK),
            (own, "m1") if own == group => swallow(sql, swallow(WRITE, after.clone())),
            _ => Step::Ok,
        });
    // One connection, so that it is the same one.
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(world.database.path());
    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .expect("a pool");
    let mut looking = world
        .builder(&["patient"])
        .store(pool.clone())
        .build()
        .await
        .expect("an inbox");
    let mut inbox = world.builder(&[group]).store(pool).build().await.expect("an inbox");
    world.publish("look").await;
    assert_eq!(next(&mut looking).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world
        .database
        .exec("UPDATE effects SET grp = 'before' WHERE grp = 'look'")
        .await;
    world.publish("m1").await;
    let outcome = timeout(HANG, next(&mut inbox)).await.expect("it ends");
    assert_eq!(
        next(&mut looking).await,
        Outcome::Processed,
        "{sql}: m1 of another group"
    );
    world.publish_to("order.created", "look2").await;
    world.probe.script(|_| Step::Exec(LOOK));
    assert_eq!(
        timeout(HANG, next(&mut looking)).await.expect("it ends"),
        Outcome::Processed,
        "{sql}"
    );
    let same = "SELECT count(DISTINCT msg_id) = 1 AND count(*) >= 2 FROM effects WHERE grp IN ('look', 'before')";
    assert_eq!(
        world.database.number(same).await,
        1,
        "{sql}, {ending:?}: it has left something"
    );
    (world, outcome)
}

/// Nothing of it stays, and its dead letter says what was done.
async fn is_broken(sql: &'static str, text: &str) {
    for (group, ending, word) in endings() {
        let (world, outcome) = run(sql, group, &ending).await;
        assert_eq!(outcome, Outcome::DeadLettered, "{sql}, {ending:?}");
        let letter = world.letter(group).await;
        assert_eq!(letter.reason, DeadLetterReason::BrokenTransaction, "{sql}, {ending:?}");
        assert!(letter.error.contains(text), "{sql}, {ending:?}: {}", letter.error);
        assert!(letter.error.contains(word), "{sql}, {ending:?}: {}", letter.error);
        world.assert_untouched(group, "m1").await;
        assert_eq!(world.database.effects("raw", "m1").await, 0, "{sql}, {ending:?}");
    }
}

/// It doesn't touch the transaction, which ends as if nothing had been done.
async fn is_harmless(sql: &'static str) {
    for (group, ending, _) in endings() {
        let (world, outcome) = run(sql, group, &ending).await;
        let (wanted, effects) = match ending {
            Step::Ok => (Outcome::Processed, 1),
            _ => (Outcome::Failed, 0),
        };
        assert_eq!(outcome, wanted, "{sql}, {ending:?}");
        assert_eq!(world.letters(group).await, [], "{sql}, {ending:?}");
        assert_eq!(world.database.effects(group, "m1").await, effects, "{sql}, {ending:?}");
        assert_eq!(world.database.effects("raw", "m1").await, effects, "{sql}, {ending:?}");
        assert_eq!(world.database.inbox(group, "m1").await, effects, "{sql}, {ending:?}");
    }
}

#[tokio::test]
async fn g02_commit() {
    is_broken("COMMIT", "ran COMMIT").await;
    is_broken("END TRANSACTION", "ran COMMIT").await;
}

#[tokio::test]
async fn g02_commit_and_begin() {
    is_broken("COMMIT; BEGIN", "ran COMMIT").await;
    is_broken(
        "COMMIT; BEGIN; INSERT INTO effects VALUES ('raw', 'm1'); COMMIT",
        "ran COMMIT",
    )
    .await;
}

#[tokio::test]
async fn g02_rollback() {
    is_broken("ROLLBACK", "rolled back").await;
    is_broken("ROLLBACK; BEGIN IMMEDIATE", "rolled back").await;
    is_broken("INSERT OR ROLLBACK INTO effects (grp) VALUES (NULL)", "rolled back").await;
}

/// A savepoint lies inside the transaction: released, rolled back to or left open, it ends nothing.
#[tokio::test]
async fn g02_savepoints() {
    is_harmless("SAVEPOINT a; RELEASE a").await;
    is_harmless("SAVEPOINT a; INSERT INTO effects VALUES ('x', 'y'); ROLLBACK TO a").await;
    is_harmless("SAVEPOINT a; SAVEPOINT b; RELEASE a").await;
}

/// Of an outermost savepoint that doesn't exist nothing can be released.
#[tokio::test]
async fn g02_a_release_of_nothing() {
    is_harmless("RELEASE nothing").await;
    is_harmless("ROLLBACK TO nothing").await;
}

/// These can't be changed inside a transaction, and are what they were.
#[tokio::test]
async fn g02_settings_that_hold_in_a_transaction() {
    is_harmless("PRAGMA synchronous = OFF").await;
    is_harmless("PRAGMA foreign_keys = OFF").await;
    is_harmless("PRAGMA journal_mode = DELETE").await;
}

/// What outlives a transaction is undone before the next message has the connection.
#[tokio::test]
async fn g06_settings_do_not_reach_the_next_message() {
    is_harmless("PRAGMA ignore_check_constraints = ON").await;
    is_harmless("PRAGMA case_sensitive_like = ON").await;
    is_harmless("PRAGMA locking_mode = EXCLUSIVE; SELECT count(*) FROM effects").await;
    is_harmless("PRAGMA busy_timeout = 0").await;
    for (group, ending, _) in endings() {
        // Its own effect after that is refused, which it ignores.
        let (world, _) = run("PRAGMA query_only = ON", group, &ending).await;
        assert_eq!(world.database.effects("raw", "m1").await, 0);
    }
}

#[tokio::test]
async fn g46_temporary_tables_and_databases_do_not_reach_the_next_message() {
    is_harmless("CREATE TEMP TABLE scratch (n); INSERT INTO scratch VALUES (1)").await;
    is_harmless("CREATE TEMP TRIGGER double AFTER INSERT ON inbox_events BEGIN SELECT 1; END").await;
    is_harmless("ATTACH ':memory:' AS other; CREATE TABLE other.t (n)").await;
}

/// Takes the hooks away by which the inbox guards its transaction.
#[inbox_handler(group = "unhooked", subject = "order.created")]
async fn unhooked(tx: &mut SqliteConnection, meta: Meta) -> sqlx::Result<()> {
    tx.effect(meta.group(), meta.message_id()).await?;
    tx.lock_handle().await?.set_commit_hook(|| true);
    Ok(())
}

#[tokio::test]
async fn g02_a_handler_that_sets_a_hook_of_its_own() {
    let world = Here::new().await;
    world.publish("m1").await;
    let mut inbox = here(&world, "unhooked").build().await.expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let letter = world.letter("unhooked").await;
    assert!(
        letter.error.contains("set a commit, rollback or progress hook"),
        "{}",
        letter.error
    );
    world.assert_untouched("unhooked", "m1").await;
}

#[tokio::test]
async fn g30_a_statement_that_never_ends_is_stopped() {
    let give_up = |next| Step::GiveUp(ENDLESS, Duration::from_millis(50), Box::new(next));
    for (ending, text) in [
        (Step::Ok, "had given up"),
        (Step::Fail("halfway"), "halfway"),
        (swallow("SELECT 1", Step::Ok), "had given up"),
    ] {
        let world = Here::new().await;
        // What is given up first blocks the second statement, which the handler's own timeout ends.
        let first = give_up(match &ending {
            Step::Swallow(sql, next) => Step::GiveUp(sql, Duration::from_millis(50), next.clone()),
            other => other.clone(),
        });
        world
            .probe
            .script(move |call| if call.id == "m1" { first.clone() } else { Step::Ok });
        world.publish("m1").await;
        world.publish("m2").await;
        let mut inbox = world.inbox(&["billing"]).await;
        let outcome = timeout(HANG, next(&mut inbox)).await.expect("it ends");
        assert_eq!(outcome, Outcome::Failed);
        let error = "SELECT count(*) FROM inbox_attempts WHERE last_error LIKE ";
        let named = world.database.number(&format!("{error}'%{text}%'")).await;
        assert_eq!(named, 1, "{text}");
        world.assert_untouched("billing", "m1").await;
        // The file isn't locked for anybody.
        world.database.exec("INSERT INTO effects VALUES ('own', 'write')").await;
        // The other message is handled, whatever comes of further attempts of this one.
        while world.database.effects("billing", "m2").await == 0 {
            timeout(HANG, next(&mut inbox)).await.expect("it ends");
        }
    }
}

/// One that has ended meanwhile is part of the transaction, as any other.
#[tokio::test]
async fn g30_a_statement_that_ends_in_time_is_waited_for() {
    let world = Here::new().await;
    let slow = "INSERT INTO effects SELECT 'slow', count(*) FROM \
                (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT i FROM n)";
    world
        .probe
        .script(move |_| Step::GiveUp(slow, Duration::ZERO, Box::new(Step::Ok)));
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    let outcome = next(&mut inbox).await;
    let effects = world.database.effects("billing", "m1").await;
    // On a machine that is too busy for it, it fails; half of it is never there.
    assert_eq!(effects, i64::from(outcome == Outcome::Processed), "{outcome}");
}

/// Reads one row of many and fails.
#[inbox_handler(group = "half-read", subject = "order.created", max_attempts = 1)]
async fn half_read(tx: &mut SqliteConnection, meta: Meta) -> Result<(), inbox_runtime::HandlerError> {
    tx.effect(meta.group(), meta.message_id()).await?;
    let mut rows =
        sqlx::query("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n").fetch(tx);
    rows.try_next().await?;
    Err("seen enough".into())
}

#[tokio::test]
async fn g47_a_rollback_after_a_result_that_was_half_read() {
    let world = Here::new().await;
    world.publish("m1").await;
    let mut inbox = here(&world, "half-read").build().await.expect("an inbox");
    let outcome = timeout(HANG, next(&mut inbox)).await.expect("it ends");
    assert_eq!(outcome, Outcome::DeadLettered);
    assert!(world.letter("half-read").await.error.contains("seen enough"));
    world.assert_untouched("half-read", "m1").await;
    world.database.exec("INSERT INTO effects VALUES ('own', 'write')").await;
}

/// A handler that is dropped in the middle of such a statement leaves nothing either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g30_a_stop_in_the_middle_of_a_statement() {
    let world = Here::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let waiting = gate.clone();
    world.probe.script(move |_| {
        waiting.add_permits(1);
        Step::Exec(ENDLESS)
    });
    world
        .broker
        .publish(Order::new("o1").to("order.created").id("m1".to_owned()))
        .await;
    let builder = world.builder(&["billing"]).shutdown_timeout(Duration::from_millis(50));
    let handle = builder.spawn().await.expect("an inbox");
    gate.acquire().await.expect("open").forget();
    handle.stop();
    timeout(HANG, handle.join()).await.expect("in time").expect("stopped");
    world.database.exec("INSERT INTO effects VALUES ('own', 'write')").await;
    world.assert_untouched("billing", "m1").await;
}
