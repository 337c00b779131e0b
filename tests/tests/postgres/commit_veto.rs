//! A handler that ends the transaction that it was lent: the commit is refused, and nothing of the message stays.

use inbox_runtime::{Inbox, Outcome, sqlx};
use inbox_tests::{Step, TestDatabase, eventually, servers::PgBouncer};

use crate::{World, shared, world_with};

/// What handlers do to the transaction. Each but the last two ends it.
const ENDS: [&str; 12] = [
    "COMMIT",
    "COMMIT; BEGIN",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "ROLLBACK; BEGIN",
    "SAVEPOINT mine; INSERT INTO effects VALUES ('hasty', 'saved'); RELEASE mine; COMMIT",
    "RESET ALL; COMMIT",
    "SET TRANSACTION NOT DEFERRABLE; COMMIT",
    "SET transaction_deferrable = off; COMMIT",
    "DELETE FROM inbox_events; COMMIT",
    "SET CONSTRAINTS ALL IMMEDIATE",
    "SELECT 1/0",
];

/// What they do then.
fn endings() -> [(&'static str, Step); 4] {
    [
        ("ok", Step::Ok),
        ("error", Step::Fail("and then")),
        ("timeout", Step::Hang),
        (
            "dead backend",
            Step::Swallow("SELECT pg_terminate_backend(pg_backend_pid())", Box::new(Step::Ok)),
        ),
    ]
}

/// Runs a message whose handler does that, and a valid one after it.
async fn nothing_stays(world: &World, inbox: Inbox, what: &str, step: Step) {
    world
        .probe
        .script(move |call| if call.id == "m1" { step.clone() } else { Step::Ok });
    world.publish("m1").await;
    world.publish("m2").await;
    let inbox = inbox.spawn();
    eventually(what, || async { inbox.report().acked == 2 }).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.dead_lettered, report.duplicate),
        (1, 1, 0),
        "{what}: {report}"
    );
    let count = async |sql: &str| world.database.number(sql).await;
    assert_eq!(
        count("SELECT count(*) FROM effects WHERE msg_id <> 'm2'").await,
        0,
        "{what}: effects"
    );
    assert_eq!(
        count("SELECT count(*) FROM inbox_events WHERE message_id <> 'm2'").await,
        0,
        "{what}: rows"
    );
    assert_eq!(count("SELECT count(*) FROM effects").await, 1, "{what}");
    assert_eq!(
        count("SELECT count(*) FROM inbox_dead_letters WHERE message_id = 'm1'").await,
        1,
        "{what}"
    );
}

async fn table(ending: usize) {
    for end in ENDS {
        let world = World::new().await;
        let (name, then) = Vec::from(endings()).swap_remove(ending);
        let inbox = world.inbox(&["hasty"]).await;
        nothing_stays(
            &world,
            inbox,
            &format!("{end}, then {name}"),
            Step::Swallow(end, Box::new(then)),
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_a_transaction_that_the_handler_ends_leaves_nothing_then_ok() {
    table(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_a_transaction_that_the_handler_ends_leaves_nothing_then_error() {
    table(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_a_transaction_that_the_handler_ends_leaves_nothing_then_timeout() {
    table(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_a_transaction_that_the_handler_ends_leaves_nothing_then_dead_backend() {
    table(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_behind_a_transaction_pooler_too() {
    let Some(server) = shared() else { return };
    let Some(pooler) = PgBouncer::before(server.port(), 5) else {
        return;
    };
    let world = world_with(|database| {
        let url = pooler.url(database.name());
        inbox_tests::pool(url.parse().expect("a URL"), 10)
    })
    .await;
    let cases: Vec<_> = ENDS
        .iter()
        .flat_map(|&end| endings().into_iter().take(3).map(move |(name, then)| (end, name, then)))
        .collect();
    let steps = cases.clone();
    world.probe.script(move |call| match call.id.strip_prefix("bad-") {
        Some(number) => {
            let (end, _, then) = steps[number.parse::<usize>().expect("a number")].clone();
            Step::Swallow(end, Box::new(then))
        }
        None => Step::Ok,
    });
    let inbox = world.builder(&["hasty"]).transaction_pooler().build().await;
    let inbox = inbox.expect("an inbox").spawn();
    for (number, (end, name, _)) in cases.iter().enumerate() {
        world.publish(&format!("bad-{number}")).await;
        world.publish(&format!("ok-{number}")).await;
        let done = 2 * (number as u64 + 1);
        eventually(&format!("{end}, then {name}"), || async {
            inbox.report().acked == done
        })
        .await;
        for table in ["effects WHERE msg_id", "inbox_events WHERE message_id"] {
            let sql = format!("SELECT count(*) FROM {table} NOT LIKE 'ok-%'");
            assert_eq!(world.database.number(&sql).await, 0, "{end}, then {name}: {table}");
        }
    }
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    let count = cases.len() as u64;
    assert_eq!(
        (report.processed, report.dead_lettered, report.duplicate),
        (count, count, 0),
        "{report}"
    );
}

/// Claims by hand, imports and restores are not vetoed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_other_sessions_commit_as_they_like() {
    let world = World::new().await;
    inbox_runtime::migrate(&world.database.pool()).await.expect("tables");
    for (id, first) in [("by-hand", "SELECT 1"), ("deferrable", "SET TRANSACTION DEFERRABLE")] {
        let mut tx = world.database.begin().await;
        sqlx::raw_sql(first).execute(&mut *tx).await.expect("done");
        let claimed = inbox_runtime::claim(&mut *tx, "billing", id).await.expect("claimed");
        assert!(!claimed.is_duplicate());
        <inbox_tests::PostgresDatabase as TestDatabase>::commit(tx).await;
    }
    world
        .database
        .exec("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('billing', 'imported', 0)")
        .await;
    let mut inbox = world.inbox(&["billing"]).await;
    let ids = ["by-hand", "deferrable", "imported"];
    for id in ids {
        world.publish(id).await;
    }
    for _ in ids {
        assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::Duplicate);
    }
}
