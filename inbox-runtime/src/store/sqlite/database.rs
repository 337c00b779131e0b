//! The SQLite file as a whole: whether it can be written to, and what is in it.

use std::{path::PathBuf, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};

use super::{
    errors::{self, own_statement, unavailable},
    migrate,
    pool::SqliteStore,
};
use crate::store::{ConnectError, DatabaseAdmin, MigrateError, MigrateMode, StoreError};

const HAS_GROUP: &str = "
    SELECT EXISTS (SELECT 1 FROM inbox_events WHERE consumer_group = $1)
        OR EXISTS (SELECT 1 FROM inbox_dead_letters WHERE consumer_group = $1)
        OR EXISTS (SELECT 1 FROM inbox_attempts WHERE consumer_group = $1)";

impl DatabaseAdmin for SqliteStore {
    fn check_connection(&self) -> BoxFuture<'_, Result<(), ConnectError>> {
        Box::pin(self.open_once())
    }

    fn migrate(&self, mode: MigrateMode) -> BoxFuture<'_, Result<(), MigrateError>> {
        Box::pin(migrate::migrate(&self.pool, mode))
    }

    /// Beside the pool and the queue of writers: whoever holds the file's lock, for minutes perhaps, proves that it can be
    /// written to.
    fn check_writable(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let options = (*self.pool.connect_options()).clone().busy_timeout(Duration::ZERO);
            let mut conn = options.connect().await.map_err(own_statement)?;
            let tried = insert_and_roll_back(&mut conn).await;
            let _ = conn.close().await;
            match tried {
                Ok(1) => Ok(()),
                Ok(_) => Err(StoreError::Unavailable(
                    "an INSERT into inbox_events inserts nothing, so every message would be taken for a duplicate; look at \
                     the table's triggers"
                        .into(),
                )),
                Err(error) if errors::is_busy(&error) => Ok(()),
                Err(error) => Err(own_statement(error)),
            }
        })
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.write_and_delete())
    }

    fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        Box::pin(async move {
            let row = sqlx::query("SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode)")
                .fetch_one(&self.pool)
                .await
                .map_err(unavailable)?;
            let text = |column| row.try_get::<String, usize>(column).map_err(unavailable);
            Ok(format!("SQLite {} (journal_mode {})", text(0)?, text(1)?))
        })
    }

    fn has_group<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let row = sqlx::query(HAS_GROUP)
                .persistent(false)
                .bind(group)
                .fetch_one(&mut *conn)
                .await
                .map_err(own_statement)?;
            row.try_get(0).map_err(unavailable)
        })
    }

    fn file(&self) -> Option<PathBuf> {
        Some(self.file.path().to_owned())
    }
}

/// Returns how many rows were inserted. What isn't rolled back here is so when the connection closes.
async fn insert_and_roll_back(conn: &mut SqliteConnection) -> sqlx::Result<u64> {
    // A read needs no lock, so that missing tables are seen even while somebody writes.
    sqlx::query("SELECT 1 FROM inbox_events LIMIT 1")
        .execute(&mut *conn)
        .await?;
    let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
    let inserted =
        sqlx::query("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('inbox', $1, 0)")
            .bind(format!("tried at the start {}", uuid::Uuid::new_v4()))
            .execute(&mut *transaction)
            .await?;
    transaction.rollback().await?;
    Ok(inserted.rows_affected())
}
