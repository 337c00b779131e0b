//! Makes the inbox's tables in a SQLite file in one transaction, or checks them.

use std::time::Duration;

use sqlx::{Row, SqliteConnection, SqlitePool};
use tokio::time::Instant;

use super::{catalog, errors};
use crate::store::{
    MigrateError, MigrateMode,
    migrations::{self, Catalog},
    schema::{self, ColumnKind, FoundTable, TableSpec},
    transaction::TxConnection,
};

const MIGRATIONS: migrations::Migrations = &[
    ("inbox", include_str!("../../../migrations/sqlite/0001_inbox.sql")),
    (
        "dead letter key",
        include_str!("../../../migrations/sqlite/0002_dead_letter_key.sql"),
    ),
    (
        "message records",
        include_str!("../../../migrations/sqlite/0003_message_records.sql"),
    ),
    ("outbox", include_str!("../../../migrations/sqlite/0004_outbox.sql")),
];

/// How long the start waits for other processes that start on the same file.
const LOCK_RETRY_WAIT: Duration = Duration::from_secs(10);

/// Makes or checks the tables.
pub(super) async fn migrate(pool: &SqlitePool, mode: MigrateMode) -> Result<(), MigrateError> {
    let deadline = Instant::now() + LOCK_RETRY_WAIT;
    let mut pause = Duration::from_millis(2);
    loop {
        match migrate_once(pool, mode).await {
            // SQLite doesn't wait where waiting could be a deadlock, as in the change to WAL, which several processes that start
            // at once on a new file run into.
            Err(MigrateError::Unavailable(error))
                if error.downcast_ref().is_some_and(errors::is_busy) && Instant::now() < deadline =>
            {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            result => return result,
        }
    }
}

async fn migrate_once(pool: &SqlitePool, mode: MigrateMode) -> Result<(), MigrateError> {
    let mut conn = TxConnection::new(pool.acquire().await.map_err(failed)?);
    refuse_memory(&mut conn).await?;
    match mode {
        MigrateMode::Off => return Ok(()),
        MigrateMode::Check => {}
        MigrateMode::Auto if migrations::is_current(&mut *conn, MIGRATIONS).await? => {}
        MigrateMode::Auto => {
            // In this mode, which is stored in the file, readers and the writer don't block one another.
            sqlx::raw_sql("PRAGMA journal_mode = WAL")
                .execute(&mut *conn)
                .await
                .map_err(failed)?;
            conn.begin("BEGIN IMMEDIATE").await.map_err(failed)?;
            let made = migrations::apply(&mut *conn, MIGRATIONS).await;
            match &made {
                Ok(()) => conn.commit().await.map_err(failed)?,
                Err(_) => conn.rollback().await.map_err(failed)?,
            }
            made?;
        }
    }
    migrations::check(&mut *conn, mode).await
}

/// An in-memory database vanishes with its last connection, and with it what was handled.
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

impl Catalog for SqliteConnection {
    const TABLES: &'static [TableSpec] = schema::SQLITE;

    async fn table_exists(&mut self, table: &str) -> sqlx::Result<bool> {
        Ok(!catalog::columns(self, table).await?.is_empty())
    }

    async fn read_table(&mut self, table: &TableSpec) -> sqlx::Result<Option<FoundTable>> {
        catalog::read_table(self, table).await
    }

    fn types(kind: ColumnKind) -> &'static [&'static str] {
        catalog::types(kind)
    }

    fn is_transient(error: &sqlx::Error) -> bool {
        errors::is_transient(error)
    }
}

fn failed(error: sqlx::Error) -> MigrateError {
    migrations::failed::<SqliteConnection>(error)
}
