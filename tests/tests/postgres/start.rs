//! What is refused at the start, and what a start does to the database.

use std::sync::Arc;

use inbox_runtime::{Error, MigrateMode};
use inbox_tests::{
    EmbeddedMemory, PostgresDatabase, Settled, Step, TestBroker, TestDatabase, eventually, next, pool, process::long,
};
use tokio::sync::Barrier;

use crate::{World, publish, world_with};

/// Why the inbox doesn't start.
async fn refusal(world: &World) -> String {
    let error: Error = world.builder(&["audit"]).build().await.expect_err("a refusal");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_too_few_connections() {
    let world = world_with(|database| pool(database.options(), 4)).await;
    let why = refusal(&world).await;
    assert!(
        why.contains("at most 4") && why.contains("at least 5") && why.contains("INBOX_POOL_SIZE"),
        "{why}"
    );
    // Nothing was done yet.
    assert_eq!(world.broker.settled("audit", ">").await, None);
    let world = world_with(|database| pool(database.options(), 5)).await;
    world.builder(&["audit"]).build().await.expect("an inbox");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_a_crash_forgets_are_refused() {
    let world = World::new().await;
    let name = world.database.name();
    world
        .database
        .exec(&format!("ALTER DATABASE {name} SET synchronous_commit = off"))
        .await;
    let why = refusal(&world).await;
    assert!(
        why.contains("synchronous_commit is off") && why.contains("set it to on"),
        "{why}"
    );
}

/// The table that nats-outbox has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_our_name_that_is_somebody_elses_is_refused() {
    let world = World::new().await;
    world
        .database
        .exec("CREATE TABLE inbox_events (event_id uuid, consumer_group text, PRIMARY KEY (event_id, consumer_group))")
        .await;
    let why = refusal(&world).await;
    assert!(
        why.contains("not the inbox's") && why.contains("event_id, consumer_group"),
        "{why}"
    );
    assert_eq!(
        world
            .database
            .number("SELECT count(*) FROM pg_tables WHERE tablename LIKE '%inbox%'")
            .await,
        1
    );
    // In a schema of its own it is welcome.
    world.database.exec("CREATE SCHEMA inbox").await;
    let pool = pool(world.database.options().options([("search_path", "inbox,public")]), 10);
    let world = crate::world_on(world.database.with_pool(pool)).await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, inbox_runtime::Outcome::Processed);
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox.inbox_events").await,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_rights_to_make_tables_checks_them() {
    let world = World::new().await;
    let error = world
        .builder(&["billing"])
        .migrate(MigrateMode::Check)
        .build()
        .await
        .expect_err("no tables");
    assert!(error.to_string().contains("INBOX_MIGRATE=auto"), "{error}");
    inbox_runtime::migrate(&world.database.pool()).await.expect("made");
    world
        .builder(&["billing"])
        .migrate(MigrateMode::Check)
        .build()
        .await
        .expect("an inbox");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_eight_start_at_once_on_an_empty_database() {
    for round in 0..if long() { 50 } else { 4 } {
        let database = PostgresDatabase::fresh().await;
        let barrier = Arc::new(Barrier::new(8));
        let starts: Vec<_> = (0..8)
            .map(|_| {
                let (database, barrier) = (database.clone(), barrier.clone());
                tokio::spawn(async move {
                    let own = pool(database.options(), 2);
                    let world = crate::world_on(database.with_pool(own)).await;
                    barrier.wait().await;
                    world.publish("m1").await;
                    let mut inbox = world
                        .builder(&["billing"])
                        .build()
                        .await
                        .map_err(|error| error.to_string())?;
                    Ok::<_, String>(crate::settle(&mut inbox).await)
                })
            })
            .collect();
        for start in starts {
            let outcome = start.await.expect("no panic");
            assert!(outcome.is_ok(), "round {round}: {outcome:?}");
        }
        let number = async |sql: &str| database.number(sql).await;
        assert_eq!(number("SELECT count(*) FROM _inbox_migrations WHERE success").await, 5);
        // Eight brokers with the same message.
        assert_eq!(number("SELECT count(*) FROM effects").await, 1);
        assert_eq!(number("SELECT count(*) FROM inbox_events").await, 1);
    }
}

/// The inbox's own table is altered under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f14_a_migration_under_load() {
    let world = World::new().await;
    let inbox = world.inbox(&["audit"]).await.spawn();
    let settled = || async { world.broker.settled("audit", ">").await == Some(Settled::ALL) };
    publish(&world, 10).await;
    eventually("ten are settled", settled).await;
    world.probe.script(|_| Step::Sleep(std::time::Duration::from_millis(5)));
    let load = async {
        for number in 11..=200 {
            world.publish(&format!("m{number}")).await;
        }
    };
    let alter = async {
        for sql in [
            "ALTER TABLE inbox_events ALTER COLUMN message_id TYPE varchar(300) COLLATE \"C\"",
            "ALTER TABLE inbox_events ADD COLUMN note text",
            "ALTER TABLE inbox_events ALTER COLUMN fingerprint TYPE numeric",
            "ALTER TABLE inbox_events ALTER COLUMN fingerprint TYPE bigint",
            "ALTER TABLE effects ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY",
        ] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            world.database.exec(sql).await;
        }
    };
    tokio::join!(load, alter);
    // Duplicates read the row's columns.
    publish(&world, 20).await;
    eventually("all is settled", settled).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.dead_lettered), (200, 0), "{report}");
    crate::assert_all_done(&world, "audit", 200).await;
}

/// SQLite's and PostgreSQL's handlers in one program, each with its own database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_program_has_handlers_for_both_databases() {
    let world = World::new().await;
    let sqlite = inbox_tests::SqliteFile::fresh().await;
    let broker = EmbeddedMemory::fresh().await;
    let mut inbox = inbox_runtime::Inbox::builder()
        .store(world.database.pool())
        .store(sqlite.pool())
        .broker(broker.connect())
        .state(world.probe.clone())
        .groups(["billing", "shipping"])
        .select(|meta| {
            let name = meta.name.strip_prefix("inbox_tests::handlers::");
            matches!(name, Some("postgres::billing" | "sqlite::shipping"))
        })
        .build()
        .await
        .expect("an inbox");
    broker
        .publish(inbox_runtime::Message::new("order.created", r#"{"order_id": "o"}"#).id("m1"))
        .await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!(report.processed, 2, "{report}");
    assert_eq!(
        (
            world.database.inbox("billing", "m1").await,
            sqlite.inbox("shipping", "m1").await
        ),
        (1, 1)
    );
}
