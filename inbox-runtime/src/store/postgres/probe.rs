//! Whether the database can be used now, asked on a fresh connection of the pool.

use std::time::Duration;

use super::{PostgresStore, claim::refuse_read_only, code, errors, statements::first};
use crate::store::StoreError;

/// How long a probe may take: a server that doesn't answer can't be used.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// Writes an inbox row and rolls it back.
pub(super) async fn probe(store: &PostgresStore) -> Result<(), StoreError> {
    tokio::time::timeout(PROBE_WAIT, write(store))
        .await
        .unwrap_or_else(|_| {
            let wait = humantime::format_duration(PROBE_WAIT);
            Err(StoreError::Unavailable(
                format!("a fresh connection was not given, or had no answer, within {wait}").into(),
            ))
        })
}

async fn write(store: &PostgresStore) -> Result<(), StoreError> {
    let mut conn = store.acquire().await?;
    conn.begin("BEGIN READ WRITE").await.map_err(errors::own)?;
    let wait = store.settings.lock_wait.as_millis().max(1);
    let events = store.shared.events();
    // The group can be nobody's.
    let sql = format!(
        "SET LOCAL lock_timeout = {wait}; INSERT INTO {events} (consumer_group, message_id, fingerprint) \
         VALUES (' ', pg_current_xact_id()::text, 0) RETURNING current_setting('default_transaction_read_only')"
    );
    let written = first(&mut conn, sql).await;
    let read_only: String = match written {
        Ok(row) => sqlx::Row::try_get(&row, 0).map_err(errors::own)?,
        Err(error) if code(&error).as_deref() == Some("55P03") => {
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
        Err(error) => return Err(errors::own(error)),
    };
    // Refused, the connection is closed: it would keep the setting that it was made with.
    refuse_read_only(&read_only)?;
    conn.rollback().await.map_err(errors::own)
}
