//! The database as a whole: its version and settings, and which groups it knows.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use sqlx::Row;

use super::{
    errors::{own_statement, unavailable},
    migrate,
    pool::PostgresStore,
    probe::probe,
};
use crate::store::{ConnectError, DatabaseAdmin, MigrateError, MigrateMode, StoreError};

const DESCRIBE: &str = "
    SELECT current_setting('server_version'), current_setting('synchronous_commit'),
        current_setting('default_transaction_isolation'), current_schema()::text,
        EXISTS (
            SELECT FROM pg_trigger WHERE tgrelid = to_regclass('inbox_events') AND tgname = 'inbox_guard'
                AND tgenabled IN ('O', 'A')
        )";

const HAS_GROUP: &str = "
    SELECT EXISTS (SELECT 1 FROM inbox_events WHERE consumer_group = $1)
        OR EXISTS (SELECT 1 FROM inbox_dead_letters WHERE consumer_group = $1)
        OR EXISTS (SELECT 1 FROM inbox_attempts WHERE consumer_group = $1)";

impl DatabaseAdmin for PostgresStore {
    fn check_connection(&self) -> BoxFuture<'_, Result<(), ConnectError>> {
        Box::pin(self.connect_once())
    }

    fn migrate(&self, mode: MigrateMode) -> BoxFuture<'_, Result<(), MigrateError>> {
        Box::pin(migrate::migrate(&self.pool, mode))
    }

    fn check_writable(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(probe(self))
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(probe(self))
    }

    fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        Box::pin(async move {
            let row = sqlx::raw_sql(DESCRIBE)
                .fetch_one(&self.pool)
                .await
                .map_err(unavailable)?;
            let text = |column| row.try_get::<String, usize>(column).map_err(unavailable);
            let has_veto: bool = row.try_get(4).map_err(unavailable)?;
            if !has_veto {
                tracing::warn!(
                    "the commit veto is missing (the trigger inbox_guard on inbox_events): a handler that runs COMMIT itself \
                     is detected, but what it has written by then stays; start once with INBOX_MIGRATE=auto, with a role that \
                     may create functions and triggers"
                );
            }
            Ok(format!(
                "PostgreSQL {} (synchronous_commit {}, isolation {}, schema {}, commit veto {})",
                text(0)?,
                text(1)?,
                text(2)?,
                text(3)?,
                if has_veto { "on" } else { "off" }
            ))
        })
    }

    fn has_group<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_read().await?;
            let row = sqlx::query(HAS_GROUP)
                .persistent(false)
                .bind(group)
                .fetch_one(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.end().await?;
            row.try_get(0).map_err(unavailable)
        })
    }

    fn file(&self) -> Option<PathBuf> {
        None
    }
}
