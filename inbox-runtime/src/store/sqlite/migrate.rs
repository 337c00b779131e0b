//! The tables of the inbox in a SQLite file: made in one transaction of ours, or looked for.

use std::time::Duration;

use sqlx::{
    Row, SqlSafeStr, Sqlite, SqliteConnection, SqlitePool,
    migrate::{Migration, MigrationType, Migrator},
};
use tokio::time::Instant;

use super::is_busy;
use crate::store::{Migrate, MigrateError, transaction};

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

/// How long the start waits for other processes that start on the same file.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes or checks the tables.
pub(super) async fn migrate(pool: &SqlitePool, mode: Migrate) -> Result<(), MigrateError> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(2);
    loop {
        match migrate_once(pool, mode).await {
            // SQLite doesn't wait where waiting could be a deadlock, as in the change to WAL, which several processes that
            // start at once on a new file do get to.
            Err(MigrateError::Unavailable(error))
                if error.downcast_ref().is_some_and(is_busy) && Instant::now() < deadline =>
            {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            result => return result,
        }
    }
}

async fn migrate_once(pool: &SqlitePool, mode: Migrate) -> Result<(), MigrateError> {
    let mut conn = pool.acquire().await.map_err(failed)?;
    refuse_memory(&mut conn).await?;
    match mode {
        Migrate::Off => return Ok(()),
        Migrate::Check => {}
        // A handler of another process may have the write lock for minutes: if there is nothing to do it isn't needed.
        Migrate::Auto if is_current(&mut conn).await? => {}
        Migrate::Auto => {
            // Readers and the writer don't block one another in this mode, which stays with the file.
            sqlx::raw_sql("PRAGMA journal_mode = WAL")
                .execute(&mut *conn)
                .await
                .map_err(failed)?;
            transaction::begin::<Sqlite>(&mut conn, "BEGIN IMMEDIATE")
                .await
                .map_err(failed)?;
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

fn migrator() -> Migrator {
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
}

/// Whether every migration has been made.
async fn is_current(conn: &mut SqliteConnection) -> Result<bool, MigrateError> {
    if columns(conn, BOOKKEEPING).await?.is_empty() {
        return Ok(false);
    }
    let made: Vec<(i64, Vec<u8>)> = sqlx::query_as("SELECT version, checksum FROM _inbox_migrations WHERE success")
        .fetch_all(conn)
        .await
        .map_err(failed)?;
    Ok(migrator().iter().all(|migration| {
        made.iter()
            .any(|(version, checksum)| *version == migration.version && checksum[..] == migration.checksum[..])
    }))
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
    migrator()
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
    MigrateError::Unavailable(Box::new(error))
}
