//! Dead letters in SQLite, whose times are milliseconds since 1970.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Row;

use super::{
    attempts::{CHARSET, clear, end_attempt, keyed, stored},
    errors::{own_statement, unavailable},
    pool::{SqliteStore, Writer},
};
use crate::{
    failpoint::failpoint,
    store::{
        DeadLetter, DeadLetterStore, NewDeadLetter, ReplayToken, StoreError, Stranded,
        encoding::{StoredKey, millis, to_millis, write_headers},
        reader::{RowReader, read_all},
    },
};

/// `$1` to `$5` are the key with `''` for no message id, `$6` is the message id or null.
const INSERT: &str = "
    INSERT INTO inbox_dead_letters (
        consumer_group, handler, position, fingerprint, message_id, subject, headers, payload, reason, error, attempts,
        message_key, published_at, first_failed_at
    )
    VALUES (
        $1, $2, $3, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
        coalesce(
            (
                SELECT first_at FROM inbox_attempts
                WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND message_id = $4 AND fingerprint = $5
            ),
            CAST(unixepoch('subsec') * 1000 AS INTEGER)
        )
    )
    ON CONFLICT (consumer_group, handler, position, coalesce(message_id, ''), fingerprint) DO UPDATE SET
        subject = excluded.subject, headers = excluded.headers, payload = excluded.payload,
        message_key = excluded.message_key, published_at = excluded.published_at, reason = excluded.reason,
        error = excluded.error, attempts = excluded.attempts, first_failed_at = excluded.first_failed_at,
        replay_at = NULL, replay_taken = FALSE, replay_requested_at = NULL,
        dead_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)";

const UPDATE_REPLAYED: &str = "
    UPDATE inbox_dead_letters SET
        reason = $3, error = $4, attempts = $5, replay_at = NULL, replay_taken = FALSE, replay_requested_at = NULL,
        dead_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)
    WHERE id = $1 AND replay_lease = $2";

const FIND: &str = "
    SELECT
        id, consumer_group, handler, position, subject, message_id, fingerprint, headers, payload, message_key, reason,
        error, attempts, replay_lease, published_at, first_failed_at, dead_at, replay_requested_at
    FROM inbox_dead_letters WHERE id = $1";

/// `$1` is the number after which the page begins, `$2` a group or null.
const LIST: &str = "
    SELECT
        id, consumer_group, handler, position, subject, message_id, fingerprint, headers, payload, message_key, reason,
        error, attempts, replay_lease, published_at, first_failed_at, dead_at, replay_requested_at
    FROM inbox_dead_letters
    WHERE id > $1 AND ($2 IS NULL OR consumer_group = $2)
    ORDER BY id LIMIT $3";

/// `$1` is a group or null.
const COUNT: &str = "SELECT count(*) FROM inbox_dead_letters WHERE $1 IS NULL OR consumer_group = $1";

const DELETE: &str = "
    DELETE FROM inbox_dead_letters WHERE id = $1
    RETURNING consumer_group, handler, position, message_id, fingerprint";

/// A replay that is under way keeps its lease.
const REQUEST_REPLAY: &str = "
    UPDATE inbox_dead_letters SET
        replay_requested_at = coalesce(replay_requested_at, CAST(unixepoch('subsec') * 1000 AS INTEGER)),
        replay_at = CASE
            WHEN replay_taken AND replay_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) THEN replay_at
            ELSE CAST(unixepoch('subsec') * 1000 AS INTEGER)
        END,
        replay_taken = replay_taken AND coalesce(replay_at > CAST(unixepoch('subsec') * 1000 AS INTEGER), FALSE)
    WHERE id = $1
    RETURNING consumer_group, handler, position, message_id, fingerprint, replay_taken";

const FIND_DUE_GROUPS: &str = "
    SELECT DISTINCT consumer_group FROM inbox_dead_letters
    WHERE replay_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)";

const FIND_DUE: &str = "
    SELECT id FROM inbox_dead_letters
    WHERE consumer_group = $1 AND handler = $2 AND replay_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) LIMIT 1";

/// The condition stands twice: what another process has leased meanwhile must not be leased again.
const LEASE_DUE: &str = "
    UPDATE inbox_dead_letters SET
        replay_lease = replay_lease + 1, replay_taken = TRUE,
        replay_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + $4
    WHERE replay_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) AND id IN (
        SELECT id FROM inbox_dead_letters
        WHERE consumer_group = $1 AND handler = $2 AND replay_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)
        ORDER BY id LIMIT $3
    )
    RETURNING
        id, consumer_group, handler, position, subject, message_id, fingerprint, headers, payload, message_key, reason,
        error, attempts, replay_lease, published_at, first_failed_at, dead_at, replay_requested_at";

const POSTPONE_REPLAY: &str = "
    UPDATE inbox_dead_letters SET
        replay_taken = $4, replay_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + $3
    WHERE id = $1 AND replay_lease = $2 AND replay_at IS NOT NULL";

const COMPLETE_REPLAY: &str = "
    DELETE FROM inbox_dead_letters WHERE id = $1 AND replay_lease = $2 AND replay_at IS NOT NULL";

/// `$1` is negative. While one of a handler's letters is leased, its others wait their turn and are not stranded.
const FIND_STRANDED: &str = "
    SELECT consumer_group, handler, count(*) AS letters FROM inbox_dead_letters AS due
    WHERE replay_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) + $1 AND NOT EXISTS (
        SELECT 1 FROM inbox_dead_letters AS taken
        WHERE taken.consumer_group = due.consumer_group AND taken.handler = due.handler
            AND taken.replay_at >= CAST(unixepoch('subsec') * 1000 AS INTEGER) AND taken.replay_taken
    )
    GROUP BY consumer_group, handler ORDER BY consumer_group, handler LIMIT 10";

/// Writes a dead letter, or overwrites the one of that message. Returns how many rows were written.
async fn insert(tx: &mut Writer, key: &StoredKey, letter: &NewDeadLetter) -> Result<u64, StoreError> {
    let done = keyed(INSERT, key)
        .bind(key.message_id.as_deref())
        .bind(CHARSET.storable(&letter.subject))
        .bind(write_headers(&letter.headers))
        .bind(letter.payload.as_deref())
        .bind(letter.reason.as_str())
        .bind(CHARSET.error(&letter.error))
        .bind(i64::from(letter.attempts))
        .bind(letter.message_key.as_deref())
        .bind(letter.published_at.map(to_millis))
        .execute(&mut *tx.conn)
        .await
        .map_err(own_statement)?;
    Ok(done.rows_affected())
}

/// Writes what became of a replay to its letter, if the lease is still that one. Returns how many rows were written.
async fn update_replayed(tx: &mut Writer, token: ReplayToken, letter: &NewDeadLetter) -> Result<u64, StoreError> {
    let done = sqlx::query(UPDATE_REPLAYED)
        .persistent(false)
        .bind(token.id)
        .bind(token.lease)
        .bind(letter.reason.as_str())
        .bind(CHARSET.error(&letter.error))
        .bind(i64::from(letter.attempts))
        .execute(&mut *tx.conn)
        .await
        .map_err(own_statement)?;
    Ok(done.rows_affected())
}

impl DeadLetterStore for SqliteStore {
    fn write_dead_letter<'a>(&'a self, letter: &'a NewDeadLetter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let key = stored(&letter.key);
            let mut tx = self.begin_write().await?;
            let written = match letter.replay {
                None => insert(&mut tx, &key, letter).await?,
                Some(token) => update_replayed(&mut tx, token, letter).await?,
            };
            end_attempt(&mut tx, &key).await?;
            failpoint!("in_dead_letter");
            tx.commit().await?;
            Ok(written > 0)
        })
    }

    fn dead_letter(&self, id: i64) -> BoxFuture<'_, Result<Option<DeadLetter>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let row = sqlx::query(FIND)
                .persistent(false)
                .bind(id)
                .fetch_optional(&mut *conn)
                .await
                .map_err(own_statement)?;
            row.as_ref()
                .map(|row| RowReader(row).letter())
                .transpose()
                .map_err(unavailable)
        })
    }

    fn dead_letters<'a>(
        &'a self,
        group: Option<&'a str>,
        after: i64,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<DeadLetter>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let rows = sqlx::query(LIST)
                .persistent(false)
                .bind(after)
                .bind(group.map(|group| CHARSET.storable(group)))
                .bind(i64::from(limit))
                .fetch_all(&mut *conn)
                .await
                .map_err(own_statement)?;
            read_all(&rows, RowReader::letter).map_err(unavailable)
        })
    }

    fn count_dead_letters<'a>(&'a self, group: Option<&'a str>) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let count: i64 = sqlx::query_scalar(COUNT)
                .persistent(false)
                .bind(group.map(|group| CHARSET.storable(group)))
                .fetch_one(&mut *conn)
                .await
                .map_err(own_statement)?;
            Ok(count.unsigned_abs())
        })
    }

    fn delete_dead_letter(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_write().await?;
            let deleted = sqlx::query(DELETE)
                .persistent(false)
                .bind(id)
                .fetch_optional(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            if let Some(row) = &deleted {
                clear(&mut tx, &RowReader(row).key().map_err(unavailable)?).await?;
            }
            tx.commit().await?;
            Ok(deleted.is_some())
        })
    }

    fn request_replay(&self, id: i64) -> BoxFuture<'_, Result<Option<(String, String)>, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_write().await?;
            let found = sqlx::query(REQUEST_REPLAY)
                .persistent(false)
                .bind(id)
                .fetch_optional(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            let Some(row) = found else {
                tx.commit().await?;
                return Ok(None);
            };
            let key = RowReader(&row).key().map_err(unavailable)?;
            if !row.try_get::<bool, _>("replay_taken").map_err(unavailable)? {
                clear(&mut tx, &key).await?;
            }
            tx.commit().await?;
            Ok(Some((key.group, key.handler)))
        })
    }

    fn groups_with_due_replays(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            sqlx::query_scalar(FIND_DUE_GROUPS)
                .persistent(false)
                .fetch_all(&mut *conn)
                .await
                .map_err(own_statement)
        })
    }

    fn lease_replays<'a>(
        &'a self,
        group: &'a str,
        handler: &'a str,
        max: usize,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Vec<(DeadLetter, ReplayToken)>, StoreError>> {
        Box::pin(async move {
            let handler = CHARSET.handler(handler);
            // A look first: it needs no lock, and mostly nothing is due.
            let mut conn = self.acquire().await?;
            let due = sqlx::query(FIND_DUE)
                .persistent(false)
                .bind(group)
                .bind(&handler)
                .fetch_optional(&mut *conn)
                .await
                .map_err(own_statement)?;
            if due.is_none() {
                return Ok(Vec::new());
            }
            let mut tx = self.begin_write().await?;
            let rows = sqlx::query(LEASE_DUE)
                .persistent(false)
                .bind(group)
                .bind(&handler)
                .bind(i64::try_from(max).unwrap_or(i64::MAX))
                .bind(millis(lease))
                .fetch_all(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.commit().await?;
            read_all(&rows, RowReader::leased).map_err(unavailable)
        })
    }

    fn postpone_replay(
        &self,
        token: ReplayToken,
        taken: bool,
        delay: Duration,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_write().await?;
            let done = sqlx::query(POSTPONE_REPLAY)
                .persistent(false)
                .bind(token.id)
                .bind(token.lease)
                .bind(millis(delay))
                .bind(taken)
                .execute(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.commit().await?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn complete_replay(&self, token: ReplayToken) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_write().await?;
            let done = sqlx::query(COMPLETE_REPLAY)
                .persistent(false)
                .bind(token.id)
                .bind(token.lease)
                .execute(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.commit().await?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn stranded_replays(&self, wait: Duration) -> BoxFuture<'_, Result<Vec<Stranded>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let rows = sqlx::query(FIND_STRANDED)
                .persistent(false)
                .bind(-millis(wait))
                .fetch_all(&mut *conn)
                .await
                .map_err(own_statement)?;
            read_all(&rows, RowReader::stranded).map_err(unavailable)
        })
    }
}
