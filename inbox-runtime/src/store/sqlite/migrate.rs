//! The tables of the inbox in a SQLite file: made in one transaction of ours, or looked for.

use std::time::Duration;

use sqlx::{Row, SqliteConnection, SqlitePool};
use tokio::time::Instant;

use super::{is_busy, reach, shape};
use crate::store::{
    Migrate, MigrateError,
    migrate::{self, Schema},
    shape::{Found, Kind, Table},
    transaction::TxConnection,
};

/// Each with its name, in order.
const MIGRATIONS: migrate::Migrations = &[
    ("inbox", include_str!("../../../migrations/sqlite/0001_inbox.sql")),
    (
        "dead letter key",
        include_str!("../../../migrations/sqlite/0002_dead_letter_key.sql"),
    ),
    (
        "message records",
        include_str!("../../../migrations/sqlite/0003_message_records.sql"),
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
    let mut conn = TxConnection::new(pool.acquire().await.map_err(failed)?);
    refuse_memory(&mut conn).await?;
    match mode {
        Migrate::Off => return Ok(()),
        Migrate::Check => {}
        Migrate::Auto if migrate::is_current(&mut *conn, MIGRATIONS).await? => {}
        Migrate::Auto => {
            // Readers and the writer don't block one another in this mode, which stays with the file.
            sqlx::raw_sql("PRAGMA journal_mode = WAL")
                .execute(&mut *conn)
                .await
                .map_err(failed)?;
            conn.begin("BEGIN IMMEDIATE").await.map_err(failed)?;
            let made = migrate::make(&mut *conn, MIGRATIONS).await;
            match &made {
                Ok(()) => conn.commit().await.map_err(failed)?,
                Err(_) => conn.rollback().await.map_err(failed)?,
            }
            made?;
        }
    }
    migrate::check(&mut *conn, mode).await
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

impl Schema for SqliteConnection {
    async fn is_there(&mut self, table: &str) -> sqlx::Result<bool> {
        Ok(!shape::columns(self, table).await?.is_empty())
    }

    async fn find(&mut self, table: &Table) -> sqlx::Result<Option<Found>> {
        shape::find(self, table).await
    }

    fn types(kind: Kind) -> &'static [&'static str] {
        shape::types(kind)
    }

    fn passes(error: &sqlx::Error) -> bool {
        reach::passes(error)
    }
}

fn failed(error: sqlx::Error) -> MigrateError {
    migrate::failed::<SqliteConnection>(error)
}
