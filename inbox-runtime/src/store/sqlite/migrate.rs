//! The tables of the inbox in a SQLite file: made in one transaction of ours, or looked for.

use std::time::Duration;

use sqlx::{
    Row, SqlSafeStr, Sqlite, SqliteConnection, SqlitePool,
    migrate::{Migration, MigrationType, Migrator},
};
use tokio::time::Instant;

use super::{is_busy, unavailable};
use crate::store::{Migrate, MigrateError, transaction};

/// How long a start waits for others that have the file.
const START_WAIT: Duration = Duration::from_secs(10);
/// Our own bookkeeping: in sqlx's default table our versions and those of the program would collide.
const BOOKKEEPING: &str = "_inbox_migrations";

/// Every table with its columns, by which a table of the same name that isn't ours is recognised.
const TABLES: [(&str, &[&str]); 3] = [
    (
        "inbox_events",
        &["consumer_group", "message_id", "fingerprint", "processed_at"],
    ),
    (
        "inbox_attempts",
        &[
            "consumer_group",
            "handler",
            "position",
            "attempts",
            "first_at",
            "last_at",
            "last_error",
        ],
    ),
    (
        "inbox_dead_letters",
        &[
            "id",
            "consumer_group",
            "handler",
            "position",
            "subject",
            "message_id",
            "headers",
            "payload",
            "published_at",
            "reason",
            "error",
            "attempts",
            "first_failed_at",
            "dead_at",
            "replay_at",
        ],
    ),
];

/// Makes or checks the tables.
pub(super) async fn migrate(pool: &SqlitePool, mode: Migrate) -> Result<(), MigrateError> {
    let mut conn = pool.acquire().await.map_err(failed)?;
    refuse_memory(&mut conn).await?;
    match mode {
        Migrate::Off => return Ok(()),
        Migrate::Check => {}
        Migrate::Auto => {
            begin(&mut conn).await.map_err(failed)?;
            let made = make(&mut conn).await;
            match &made {
                Ok(()) => transaction::commit::<Sqlite>(&mut conn).await.map_err(failed)?,
                Err(_) => transaction::rollback::<Sqlite>(&mut conn).await.map_err(failed)?,
            }
            made?;
        }
    }
    check(&mut conn).await
}

/// Turns on the write-ahead log and begins a transaction, as soon as others let us.
///
/// SQLite doesn't wait where waiting could be a deadlock, as in the change of the journal; several programs that start on
/// a new file at once, or beside one that writes, do get there.
async fn begin(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    let deadline = Instant::now() + START_WAIT;
    let mut pause = Duration::from_millis(2);
    loop {
        match try_begin(conn).await {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            begun => return begun,
        }
    }
}

async fn try_begin(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    // Readers and the writer don't block one another in this mode, which stays with the file.
    sqlx::raw_sql("PRAGMA journal_mode = WAL").execute(&mut *conn).await?;
    transaction::begin::<Sqlite>(conn, "BEGIN IMMEDIATE").await
}

/// An in-memory database is gone when its last connection closes, and with it the knowledge of what was handled.
async fn refuse_memory(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    let file: String = sqlx::query("SELECT file FROM pragma_database_list WHERE name = 'main'")
        .fetch_one(conn)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(failed)?;
    if file.is_empty() {
        return Err(MigrateError::Shape(
            "the SQLite database is in memory, where the inbox would be forgotten with its last connection and every \
             message be new again; use a file, as in sqlite://app.db (a temporary one in tests)"
                .to_owned(),
        ));
    }
    Ok(())
}

async fn make(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    // A table of one of our names that we haven't made would make the migration fail with less to say.
    if columns(conn, BOOKKEEPING).await?.is_empty() {
        for (table, wanted) in TABLES {
            let found = columns(conn, table).await?;
            if !found.is_empty() {
                return Err(foreign(table, wanted, &found));
            }
        }
    }
    let mut migrator = Migrator::with_migrations(vec![Migration::new(
        1,
        "inbox".into(),
        MigrationType::Simple,
        include_str!("../../../migrations/sqlite/0001_inbox.sql").into_sql_str(),
        false,
    )]);
    // A newer version of this crate may have been here before, in a rolling upgrade.
    migrator.set_ignore_missing(true).set_locking(false);
    migrator.dangerous_set_table_name(BOOKKEEPING);
    migrator
        .run_direct(None, conn, false)
        .await
        .map_err(|error| MigrateError::Failed(Box::new(error)))
}

async fn check(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    for (table, wanted) in TABLES {
        let found = columns(conn, table).await?;
        if found.is_empty() {
            return Err(MigrateError::Shape(format!(
                "the table `{table}` is missing; start once with INBOX_MIGRATE=auto, or call `inbox_runtime::migrate`"
            )));
        }
        if !wanted.iter().all(|column| found.iter().any(|name| name == column)) {
            return Err(foreign(table, wanted, &found));
        }
    }
    Ok(())
}

fn foreign(table: &str, wanted: &[&str], found: &[String]) -> MigrateError {
    MigrateError::Shape(format!(
        "there is a table `{table}` that is not the inbox's: it has the columns {}, the inbox's has {}; rename it, or \
         give the inbox a database of its own",
        found.join(", "),
        wanted.join(", ")
    ))
}

async fn columns(conn: &mut SqliteConnection, table: &str) -> Result<Vec<String>, MigrateError> {
    let rows = sqlx::query("SELECT name FROM pragma_table_info($1)")
        .bind(table)
        .fetch_all(conn)
        .await
        .map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

fn failed(error: sqlx::Error) -> MigrateError {
    MigrateError::Unavailable(Box::new(unavailable(error)))
}
