//! Whether the database can be used now, tried on a connection of the pool.

use std::time::Duration;

use sqlx::Row;

use super::{
    errors::{Meaning, Step, meaning, own_statement, store_error},
    pool::PostgresStore,
    setup::refuse_read_only,
    simple_query::query_first,
};
use crate::store::StoreError;

/// How long a probe may take: a server that doesn't answer can't be used.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// Inserts an inbox row and rolls back.
pub(super) async fn probe(store: &PostgresStore) -> Result<(), StoreError> {
    tokio::time::timeout(PROBE_WAIT, insert_and_roll_back(store))
        .await
        .unwrap_or_else(|_| {
            let wait = humantime::format_duration(PROBE_WAIT);
            Err(StoreError::Unavailable(
                format!("a fresh connection was not given, or had no answer, within {wait}").into(),
            ))
        })
}

async fn insert_and_roll_back(store: &PostgresStore) -> Result<(), StoreError> {
    let mut tx = store.begin_write().await?;
    let wait = store.settings.lock_wait.as_millis().max(1);
    let claim_sql = store.claim_sql();
    let events = &claim_sql.events;
    // No group has that name.
    let sql = format!(
        "SET LOCAL lock_timeout = {wait}; INSERT INTO {events} (consumer_group, message_id, fingerprint) \
         VALUES (' ', pg_current_xact_id()::text, 0) RETURNING current_setting('default_transaction_read_only')"
    );
    let read_only: String = match query_first(&mut tx.conn, sql).await {
        Ok(row) => row.try_get(0).map_err(own_statement)?,
        Err(error) if meaning(Step::Probe, &error) == Meaning::Locked => {
            let why = format!(
                "another session has held a lock on the table {events} for more than {wait} ms (LOCK TABLE, ALTER TABLE, \
                 CREATE INDEX, VACUUM FULL)"
            );
            return Err(StoreError::Unavailable(why.into()));
        }
        Err(sqlx::Error::RowNotFound) => {
            let why = format!(
                "an INSERT into {events} inserts nothing, so every message would be taken for a duplicate; look at the \
                 table's triggers and rules"
            );
            return Err(StoreError::Unavailable(why.into()));
        }
        Err(error) => return Err(store_error(Step::Probe, error)),
    };
    // After a refusal the connection is closed: it would keep the setting that it was opened with.
    refuse_read_only(&read_only)?;
    tx.end().await
}
