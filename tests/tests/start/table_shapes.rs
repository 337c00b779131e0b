//! Tables of the inbox in a SQLite file that are not as they must be: each is a start error that says what is wanted and what
//! is there.

use inbox_runtime::{Error, MigrateMode, migrate};
use inbox_tests::{EmbeddedMemory, SqliteFile, TestDatabase, World, eventually, next};

type Here = World<EmbeddedMemory, SqliteFile>;

const COLUMNS: &str = "fingerprint INTEGER NOT NULL, processed_at INTEGER NOT NULL DEFAULT 0";

/// A database with the inbox's tables, changed by these statements.
async fn changed(sql: &str) -> Here {
    let world = Here::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    world.database.exec(sql).await;
    world
}

/// The table of events, recreated with these keys.
fn events(keys: &str) -> String {
    format!(
        "DROP TABLE inbox_events; CREATE TABLE inbox_events ({keys}, {COLUMNS}, PRIMARY KEY (consumer_group, message_id))"
    )
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[tokio::test]
async fn g44_types_collations_and_keys_are_checked() {
    let group = "consumer_group TEXT NOT NULL";
    for (sql, parts) in [
        (
            format!("DROP TABLE inbox_events; CREATE TABLE inbox_events ({group}, message_id TEXT NOT NULL, {COLUMNS})"),
            &["`inbox_events`", "wanted PRIMARY KEY (consumer_group, message_id)", "none"][..],
        ),
        (
            format!("DROP TABLE inbox_events; CREATE TABLE inbox_events ({group}, message_id TEXT PRIMARY KEY NOT NULL, {COLUMNS})"),
            &["wanted PRIMARY KEY (consumer_group, message_id)", "(message_id)", "exclude one another"],
        ),
        (
            events(&format!("{group}, message_id TEXT NOT NULL COLLATE NOCASE")),
            &["`message_id`", "compares byte by byte", "NOCASE"],
        ),
        (events(&format!("{group}, message_id UUID NOT NULL")), &["`message_id`: wanted TEXT; there is NUMERIC"]),
        (events(&format!("{group}, message_id NOT NULL")), &["`message_id`: wanted TEXT; there is BLOB"]),
        (
            events(&format!("{group}, message_id TEXT NOT NULL, tenant TEXT NOT NULL")),
            &["`tenant`", "can't fill"],
        ),
        (
            "CREATE UNIQUE INDEX once ON inbox_events (message_id)".to_owned(),
            &["`once` (message_id)", "exclude one another", "drop it"],
        ),
        (
            "CREATE UNIQUE INDEX once ON inbox_attempts (lower(position))".to_owned(),
            &["`inbox_attempts`", "`once`", "an expression"],
        ),
        (
            "ALTER TABLE inbox_events RENAME TO kept; CREATE VIEW inbox_events AS SELECT * FROM kept".to_owned(),
            &["wanted a table; there is a view"],
        ),
        (
            "DROP TABLE inbox_attempts; CREATE TABLE inbox_attempts (consumer_group TEXT NOT NULL, handler TEXT NOT NULL, \
             position TEXT NOT NULL, message_id TEXT NOT NULL DEFAULT '', fingerprint INTEGER NOT NULL DEFAULT 0, \
             unfinished INTEGER NOT NULL DEFAULT 0, attempts REAL NOT NULL, first_at INTEGER NOT NULL, last_at INTEGER NOT NULL DEFAULT 0, \
             last_error TEXT NOT NULL, PRIMARY KEY (consumer_group, handler, position, message_id, fingerprint))"
                .to_owned(),
            &[
                "for 3 reasons",
                "`inbox_attempts`",
                "`attempts`: wanted INTEGER; there is REAL",
                "`first_at`: wanted a default",
                "`last_error`: wanted a column that may be null",
            ],
        ),
    ] {
        let world = changed(&sql).await;
        for mode in [MigrateMode::Auto, MigrateMode::Check] {
            match world.builder(&["billing"]).migrate(mode).build().await {
                Err(error @ Error::Migrate { .. }) => assert_says(&error.to_string(), parts),
                other => panic!("{sql}: {other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_a_trigger_that_swallows_rows_is_detected() {
    let world = changed("CREATE TRIGGER swallow BEFORE INSERT ON inbox_events BEGIN SELECT RAISE(IGNORE); END").await;
    world.publish("m1").await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("it waits");
    let health = inbox.health();
    assert!(!health.ready, "{health:?}");
    assert_says(&health.reasons.join("; "), &["inserts nothing", "triggers"]);
    world.database.exec("DROP TRIGGER swallow").await;
    eventually("m1 is settled", async || world.settled("billing").await).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
    world.assert_done("billing", "m1").await;
}

/// What a newer version or an operator may add without harm.
#[tokio::test]
async fn g44_what_does_no_harm_is_taken() {
    let rowid = format!(
        "{}; CREATE INDEX by_time ON inbox_events (processed_at); \
         CREATE UNIQUE INDEX wider ON inbox_events (message_id, consumer_group, processed_at); \
         CREATE TRIGGER note AFTER INSERT ON inbox_events BEGIN SELECT 1; END; \
         ALTER TABLE inbox_dead_letters ADD COLUMN note TEXT NOT NULL DEFAULT ''",
        events("consumer_group varchar(100) NOT NULL, message_id char(40) NOT NULL")
    );
    let world = changed(&rowid).await;
    for mode in [MigrateMode::Auto, MigrateMode::Check] {
        world.publish(&format!("{mode:?}")).await;
        let inbox = world.builder(&["billing"]).migrate(mode).build().await;
        assert_eq!(
            next(&mut inbox.expect("an inbox")).await,
            inbox_runtime::Outcome::Processed
        );
    }
}
