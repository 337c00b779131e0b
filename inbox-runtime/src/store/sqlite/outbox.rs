//! The outbox in a SQLite file: written in a handler's or an application's transaction, and worked on by one relay at a time, which
//! has the lock of a file beside it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    mem,
    path::PathBuf,
};

use futures_util::future::BoxFuture;
use sqlx::{Row, Sqlite, SqliteConnection};

use super::{
    attempts::CHARSET,
    errors::{own_statement, unavailable},
    pool::SqliteStore,
};
use crate::store::{
    LaneRequest, NewOutboxMessage, OutboxHeads, OutboxLane, OutboxRow, OutboxStore, ParkedMessage, PublishError,
    StoreError,
    encoding::{millis, write_headers},
    reader::{RowReader, read_all, read_heads},
    transaction,
};

const INSERT: &str = "
    INSERT INTO inbox_outbox (message_id, subject, message_key, headers, payload) VALUES ($1, $2, $3, $4, $5)";

/// `$6` is the delay in milliseconds.
const INSERT_LATER: &str = "
    INSERT INTO inbox_outbox_later (message_id, subject, message_key, headers, payload, due_at)
    VALUES ($1, $2, $3, $4, $5, CAST(unixepoch('subsec') * 1000 AS INTEGER) + $6)";

const CANCEL: &str = "DELETE FROM inbox_outbox_later WHERE message_id = $1";

/// The row with lane -1 is a delayed message that is due.
const HEADS: &str = "
    SELECT * FROM (
        SELECT 0 AS lane, CAST(unixepoch('subsec') * 1000 AS INTEGER) - created_at AS age FROM inbox_outbox
        ORDER BY id LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT -1, 0 FROM inbox_outbox_later
        WHERE due_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) LIMIT 1
    )";

/// Of the first `$2` messages those before which there are less than `$3` bytes. `$1` is a JSON array of subjects.
const FETCH: &str = "
    SELECT id, subject, message_key, headers, payload FROM (
        SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before FROM (
            SELECT id, subject, message_key, headers, payload, length(headers) + coalesce(length(payload), 0) AS size
            FROM inbox_outbox
            WHERE subject NOT IN (SELECT value FROM json_each($1)) AND ($4 IS NULL OR subject = $4)
            ORDER BY id LIMIT $2
        )
    )
    WHERE before < $3 ORDER BY id";

/// `$1` is a JSON array of numbers.
const DELETE: &str = "DELETE FROM inbox_outbox WHERE id IN (SELECT value FROM json_each($1))";

const PARK: &str = "
    INSERT INTO inbox_outbox_parked (message_id, subject, message_key, headers, payload, created_at, error)
    SELECT message_id, subject, message_key, headers, payload, created_at, $2 FROM inbox_outbox WHERE id = $1";

const DELETE_ONE: &str = "DELETE FROM inbox_outbox WHERE id = $1";

const MOVE_DUE: &str = "
    INSERT INTO inbox_outbox (message_id, subject, message_key, headers, payload)
    SELECT message_id, subject, message_key, headers, payload FROM inbox_outbox_later
    WHERE due_at <= $1 ORDER BY due_at, id LIMIT $2";

const DELETE_DUE: &str = "
    DELETE FROM inbox_outbox_later WHERE id IN (
        SELECT id FROM inbox_outbox_later WHERE due_at <= $1 ORDER BY due_at, id LIMIT $2
    )";

const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM inbox_outbox LIMIT $1)";
const COUNT_PARKED: &str = "SELECT count(*) FROM (SELECT 1 FROM inbox_outbox_parked LIMIT $1)";

const LIST_PARKED: &str = "
    SELECT id, message_id, subject, message_key, headers, payload, error, parked_at
    FROM inbox_outbox_parked WHERE id > $1 ORDER BY id LIMIT $2";

const REPLAY_PARKED: &str = "
    INSERT INTO inbox_outbox (message_id, subject, message_key, headers, payload)
    SELECT message_id, subject, message_key, headers, payload FROM inbox_outbox_parked WHERE id = $1";

const DISCARD_PARKED: &str = "DELETE FROM inbox_outbox_parked WHERE id = $1";

/// Writes a message in the transaction that is open on `conn`.
pub(super) async fn insert(conn: &mut SqliteConnection, outgoing: &NewOutboxMessage) -> sqlx::Result<()> {
    let message = &outgoing.message;
    let sql = if outgoing.delay.is_some() { INSERT_LATER } else { INSERT };
    let query = sqlx::query(sql)
        .bind(&outgoing.message_id)
        .bind(&message.subject)
        .bind(message.key.as_deref())
        .bind(write_headers(&message.headers))
        .bind(message.payload.as_deref());
    let query = match outgoing.delay {
        Some(delay) => query.bind(millis(delay)),
        None => query,
    };
    query.execute(conn).await.map(drop)
}

/// Writes a message on a connection with an open transaction of the application's.
pub(super) async fn publish_on(conn: &mut SqliteConnection, outgoing: &NewOutboxMessage) -> Result<(), PublishError> {
    transaction::require::<Sqlite>(conn)?;
    Ok(insert(conn, outgoing).await?)
}

/// Deletes the delayed messages of an id on such a connection. Returns how many there were.
pub(super) async fn cancel_on(conn: &mut SqliteConnection, message_id: &str) -> Result<u64, PublishError> {
    transaction::require::<Sqlite>(conn)?;
    let cancelled = sqlx::query(CANCEL).bind(message_id).execute(conn).await?;
    Ok(cancelled.rows_affected())
}

impl SqliteStore {
    /// The lock that one relay of the file has, beside the file. Another process that dies gives it back.
    fn relay_lock(&self) -> Result<Option<File>, StoreError> {
        let mut path = self.file.path().as_os_str().to_owned();
        path.push("-relay");
        let path = PathBuf::from(path);
        let failed = |error: std::io::Error| {
            StoreError::Unavailable(format!("the file {} can't be locked: {error}", path.display()).into())
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    async fn count_up_to(&self, sql: &'static str, max: u64) -> Result<u64, StoreError> {
        let mut conn = self.acquire().await?;
        let row = sqlx::query(sql)
            .bind(i64::try_from(max).unwrap_or(i64::MAX))
            .fetch_one(&mut *conn)
            .await
            .map_err(own_statement)?;
        row.try_get::<i64, _>(0).map(i64::unsigned_abs).map_err(unavailable)
    }
}

impl OutboxStore for SqliteStore {
    fn outbox_heads(&self) -> BoxFuture<'_, Result<OutboxHeads, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let rows = sqlx::query(HEADS).fetch_all(&mut *conn).await.map_err(own_statement)?;
            read_heads(&rows).map_err(unavailable)
        })
    }

    fn take_lane<'a>(
        &'a self,
        request: LaneRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Box<dyn OutboxLane>>, StoreError>> {
        Box::pin(async move {
            let Some(lock) = self.relay_lock()? else {
                return Ok(None);
            };
            let mut conn = self.acquire().await?;
            let rows = sqlx::query(FETCH)
                .bind(json(&request.skip))
                .bind(i64::from(request.max_messages))
                .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
                .bind(request.only)
                .fetch_all(&mut *conn)
                .await
                .map_err(own_statement)?;
            let rows = read_all(&rows, RowReader::outgoing).map_err(unavailable)?;
            let store = self.clone();
            Ok(Some(Box::new(SqliteLane {
                store,
                rows,
                _lock: lock,
            }) as Box<dyn OutboxLane>))
        })
    }

    fn move_due(&self, max: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_write().await?;
            // One time for both statements.
            let now: i64 = sqlx::query_scalar("SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)")
                .fetch_one(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            let mut moved = 0;
            for sql in [MOVE_DUE, DELETE_DUE] {
                let done = sqlx::query(sql)
                    .bind(now)
                    .bind(i64::from(max))
                    .execute(&mut *tx.conn)
                    .await;
                moved = done.map_err(own_statement)?.rows_affected();
            }
            tx.commit().await?;
            Ok(moved)
        })
    }

    fn count_outbox(&self, max: u64) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.count_up_to(COUNT, max))
    }

    fn count_parked(&self, max: u64) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.count_up_to(COUNT_PARKED, max))
    }

    fn parked(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let rows = sqlx::query(LIST_PARKED)
                .bind(after)
                .bind(i64::from(limit))
                .fetch_all(&mut *conn)
                .await
                .map_err(own_statement)?;
            read_all(&rows, RowReader::parked).map_err(unavailable)
        })
    }

    fn replay_parked(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.write_by_number(&[REPLAY_PARKED, DISCARD_PARKED], id).await })
    }

    fn discard_parked(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.write_by_number(&[DISCARD_PARKED], id).await })
    }
}

impl SqliteStore {
    /// Runs statements whose argument is a number. Returns whether the last has written anything.
    async fn write_by_number(&self, statements: &[&'static str], number: i64) -> Result<bool, StoreError> {
        let mut tx = self.begin_write().await?;
        let mut written = false;
        for sql in statements {
            let done = sqlx::query(*sql).bind(number).execute(&mut *tx.conn).await;
            written = done.map_err(own_statement)?.rows_affected() > 0;
        }
        tx.commit().await?;
        Ok(written)
    }
}

/// The only lane, as long as the lock is held.
struct SqliteLane {
    store: SqliteStore,
    rows: Vec<OutboxRow>,
    _lock: File,
}

impl OutboxLane for SqliteLane {
    fn take_rows(&mut self) -> Vec<OutboxRow> {
        mem::take(&mut self.rows)
    }

    fn finish(
        self: Box<Self>,
        confirmed: Vec<i64>,
        refused: Vec<(i64, String)>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move {
            if confirmed.is_empty() && refused.is_empty() {
                return Ok(());
            }
            let mut tx = self.store.begin_write().await?;
            let deleted = sqlx::query(DELETE).bind(json(&confirmed)).execute(&mut *tx.conn).await;
            deleted.map_err(own_statement)?;
            for (id, reason) in refused {
                let parked = sqlx::query(PARK)
                    .bind(id)
                    .bind(CHARSET.error(&reason))
                    .execute(&mut *tx.conn)
                    .await;
                parked.map_err(own_statement)?;
                let deleted = sqlx::query(DELETE_ONE).bind(id).execute(&mut *tx.conn).await;
                deleted.map_err(own_statement)?;
            }
            tx.commit().await
        })
    }
}

/// A list as the argument of `json_each`.
fn json(list: &impl serde::Serialize) -> String {
    // Lists of numbers and texts can always be written.
    serde_json::to_string(list).unwrap_or_default()
}
