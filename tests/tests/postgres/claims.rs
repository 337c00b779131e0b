//! Two workers on one message: the second waits, and never acknowledges on a guess.

use std::time::Duration;

use inbox_runtime::{Message, Outcome, sqlx::Connection};
use inbox_tests::{
    EmbeddedFile, PostgresDatabase, Step, TestBroker, TestConnection, TestDatabase, eventually, next,
    process::{Mode, Signal, WorkerCommand},
    servers::postgres,
};

use crate::{World, assert_all_done, handlers, publish, sessions, settle, world_on};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f03_duplicates_never_abort_a_transaction() {
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    world.publish("one").await;
    world.publish("one").await;
    for _ in 0..50 {
        world.publish("many").await;
    }
    // The copies conflict with the claim of the one that runs.
    world.probe.script(|call| match call.id.as_str() {
        "many" => Step::Sleep(Duration::from_millis(200)),
        _ => Step::Ok,
    });
    let inboxes = [
        world.inbox(&["audit"]).await.spawn(),
        world.inbox(&["audit"]).await.spawn(),
    ];
    eventually("all is settled", || async {
        world.broker.settled("audit", ">").await == Some(inbox_tests::Settled::ALL)
    })
    .await;
    for inbox in inboxes {
        inbox.stop();
        inbox.join().await.expect("stopped");
    }
    assert_eq!(
        (world.probe.runs("audit", "one"), world.probe.runs("audit", "many")),
        (1, 1)
    );
    assert_all_done(&world, "audit", 2).await;
    let log = server.log();
    assert!(!log.contains(" 25P02 ") && !log.contains(" 23505 "), "{log}");
}

/// The first copy takes a while; the second waits for it.
async fn two_copies(first: Step) -> World {
    let world = World::new().await;
    world.publish("x").await;
    world.publish("x").await;
    world
        .probe
        .script(move |call| if call.run == 1 { first.clone() } else { Step::Ok });
    let (mut a, mut b) = (
        world.builder(&["billing"]).build().await.expect("an inbox"),
        world
            .builder(&["billing"])
            .lock_wait(Duration::from_secs(15))
            .build()
            .await
            .expect("an inbox"),
    );
    let a = tokio::spawn(async move { next(&mut a).await });
    eventually("the first runs", || async { world.probe.runs("billing", "x") == 1 }).await;
    let b = tokio::spawn(async move { next(&mut b).await });
    eventually("the second waits", || async { waiting(&world).await == 1 }).await;
    assert!(!b.is_finished(), "the second copy was settled while the first is open");
    world.assert_untouched("billing", "x").await;
    let (a, b) = (a.await.expect("no panic"), b.await.expect("no panic"));
    match a {
        Outcome::Processed => assert_eq!((b, world.probe.runs("billing", "x")), (Outcome::Duplicate, 1)),
        _ => assert_eq!((a, b), (Outcome::Failed, Outcome::Processed)),
    }
    world.assert_done("billing", "x").await;
    world
}

/// Sessions that wait for a lock.
async fn waiting(world: &World) -> i64 {
    world
        .database
        .number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a8_the_second_copy_waits_until_the_first_commits() {
    let world = two_copies(Step::Sleep(Duration::from_secs(2))).await;
    assert!(world.settled("billing").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a8_the_second_copy_runs_when_the_first_rolls_back() {
    let world = two_copies(Step::Swallow("SELECT pg_sleep(2)", Box::new(Step::Fail("halfway")))).await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert!(world.settled("billing").await);
}

/// The first copy is in a process that is killed while the second waits on its claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_the_second_copy_runs_when_the_process_of_the_first_is_killed() {
    let world = inbox_tests::World::<EmbeddedFile, PostgresDatabase>::new().await;
    world.publish("x").await;
    let mut worker = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .script("x=sleep:60s")
        .start();
    worker.says("run billing x").await;
    // It prefetches one more, and no further one.
    world.publish("y").await;
    eventually("the process has its next message", || async {
        let settled = world.broker.settled("billing", "order.created").await;
        settled.is_some_and(|settled| settled.waiting == 0)
    })
    .await;
    world.publish("x").await;
    let mut inbox = world
        .builder(&["billing"])
        .lock_wait(Duration::from_secs(30))
        .build()
        .await
        .expect("an inbox");
    let second = tokio::spawn(async move { next(&mut inbox).await });
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("the second waits", || async {
        world.database.number(waiting).await == 1
    })
    .await;
    assert!(worker.kill().await.killed_by(Signal::KILL));
    assert_eq!(second.await.expect("no panic"), Outcome::Processed);
    world.assert_done("billing", "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a_wait_that_runs_out_is_locked_and_holds_nothing() {
    let world = World::new().await;
    let mut inbox = world
        .builder(&["billing"])
        .lock_wait(Duration::from_millis(300))
        .build()
        .await
        .expect("an inbox");
    let mut stranger = world.database.stranger().await;
    let mut held = stranger.begin().await.expect("a transaction");
    held.exec("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('billing', 'x', 0)")
        .await
        .expect("the claim");
    world.publish("x").await;
    for _ in 0..2 {
        assert_eq!(next(&mut inbox).await, Outcome::Locked);
        assert_eq!(waiting(&world).await, 0, "a session still waits");
        // Only the stranger's.
        assert_eq!(sessions(&world, "idle in transaction%").await, 1);
    }
    assert!(!world.settled("billing").await);
    assert_eq!(
        world
            .database
            .number("SELECT count(*) FROM inbox_attempts WHERE attempts > 0")
            .await,
        0
    );
    held.rollback().await.expect("rolled back");
    assert_eq!(settle(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.probe.runs("billing", "x"), 1);
    world.assert_done("billing", "x").await;
}

/// Copies at the same time, and messages that write one row: the database asks for fresh transactions, which are no
/// attempts.
async fn serialization(isolation: &str) {
    let world = World::new().await;
    let name = world.database.name();
    world
        .database
        .exec(&format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'"
        ))
        .await;
    world
        .database
        .exec("CREATE TABLE counters (n int NOT NULL); INSERT INTO counters VALUES (0)")
        .await;
    for number in 1..=15 {
        world.publish(&format!("m{number}")).await;
        world.publish(&format!("m{number}")).await;
    }
    world.probe.script(|_| Step::Exec("UPDATE counters SET n = n + 1"));
    let inbox = world.inbox(&["audit"]).await.spawn();
    eventually("all is settled", || async {
        world.broker.settled("audit", ">").await == Some(inbox_tests::Settled::ALL)
    })
    .await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.duplicate, report.failed),
        (15, 15, 0),
        "{report}"
    );
    assert_all_done(&world, "audit", 15).await;
    assert_eq!(world.database.number("SELECT n::bigint FROM counters").await, 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_repeatable_read() {
    serialization("repeatable read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_serializable() {
    serialization("serializable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_each_run_has_a_transaction_of_its_own() {
    let world = World::new().await;
    world.publish("m1").await;
    let inbox = handlers::builder(&world, "thrice").spawn().await.expect("an inbox");
    eventually("all is settled", || world.settled("thrice")).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
    let mut ids = handlers::TRANSACTIONS.lock().clone();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
    world.assert_done("thrice", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_no_row_survives_a_failure_so_the_id_can_come_again() {
    let world = World::new().await;
    world.publish("x").await;
    world.probe.script(|_| Step::Fail("broken"));
    let mut inbox = world.inbox(&["billing"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    world.assert_untouched("billing", "x").await;
    world.probe.script(|_| Step::Ok);
    world.publish("x").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "x").await;
    assert!(world.settled("billing").await);
}

/// What PostgreSQL can't keep in a text or a jsonb.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f95_nul_in_payload_header_and_error() {
    let world = World::new().await;
    let payload = r#"{"order_id": "a\u0000b"}"#;
    let message = Message::new("order.created", payload).id("x").header("note", "n\0ul");
    world.broker.publish(message).await;
    world.probe.script(|_| Step::Permanent("bad \0 text"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let letters = inbox_runtime::dead_letters(&world.database.pool())
        .list(inbox_runtime::DeadLetterQuery::default())
        .await
        .expect("read");
    assert_eq!(letters[0].payload.as_deref(), Some(payload.as_bytes()));
    assert!(letters[0].error.contains("bad \u{fffd} text"), "{}", letters[0].error);
    assert!(world.settled("billing").await);
    // And with a failure that is not the last one.
    world.probe.script(|_| Step::Fail("bad \0 text"));
    publish(&world, 1).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
}
