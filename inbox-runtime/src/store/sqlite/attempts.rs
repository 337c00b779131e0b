//! Attempts in SQLite, whose times are milliseconds since 1970.

use futures_util::future::BoxFuture;
use sqlx::{Row, Sqlite, query::Query, sqlite::SqliteArguments};

use super::{
    errors::{own_statement, unavailable},
    pool::{SqliteStore, Writer},
};
use crate::store::{
    AttemptKey, AttemptLimit, AttemptStore, BeginAttempt, Fingerprint, StoreError,
    begin_attempt::KnownMessage,
    encoding::{Charset, StoredKey, attempts},
    reader::RowReader,
};

const FIND_HANDLED: &str = "
    SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2";

/// `$6` is the message's id if its inbox row counts, else null.
const FIND_KNOWN: &str = "
    SELECT
        (SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $6) AS handled,
        EXISTS (
            SELECT 1 FROM inbox_dead_letters
            WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND coalesce(message_id, '') = $4
                AND fingerprint = $5 AND replay_at IS NULL
        ) AS dead_lettered,
        attempts, unfinished, last_error
    FROM (SELECT 1) AS one
    LEFT JOIN inbox_attempts
        ON consumer_group = $1 AND handler = $2 AND position = $3 AND message_id = $4 AND fingerprint = $5";

/// `$6` is 1 if the attempt counts before it is made, else 0.
const NOTE_ATTEMPT: &str = "
    INSERT INTO inbox_attempts (consumer_group, handler, position, message_id, fingerprint, attempts, unfinished)
    VALUES ($1, $2, $3, $4, $5, $6, TRUE)
    ON CONFLICT (consumer_group, handler, position, message_id, fingerprint) DO UPDATE SET
        attempts = inbox_attempts.attempts + excluded.attempts, unfinished = TRUE
    RETURNING attempts";

/// The attempt that was counted ran alone, and does so again: it stays unfinished.
const REFUND_COUNTED: &str = "
    UPDATE inbox_attempts SET attempts = attempts - 1
    WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND message_id = $4 AND fingerprint = $5
        AND attempts > 0";

const REFUND_NOTED: &str = "
    UPDATE inbox_attempts SET unfinished = FALSE
    WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND message_id = $4 AND fingerprint = $5";

/// `$7` is 0 if the attempt was counted before it was made, else 1.
const RECORD_FAILURE: &str = "
    INSERT INTO inbox_attempts (consumer_group, handler, position, message_id, fingerprint, attempts, last_error)
    VALUES ($1, $2, $3, $4, $5, 1, $6)
    ON CONFLICT (consumer_group, handler, position, message_id, fingerprint) DO UPDATE SET
        attempts = inbox_attempts.attempts + $7, unfinished = FALSE, last_error = excluded.last_error,
        last_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)
    RETURNING attempts";

const CLEAR_ATTEMPTS: &str = "
    DELETE FROM inbox_attempts
    WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND message_id = $4 AND fingerprint = $5";

/// SQLite stores every text.
pub(super) const CHARSET: Charset = Charset::Unicode;

pub(super) fn stored(key: &AttemptKey) -> StoredKey {
    StoredKey::new(CHARSET, key)
}

/// A statement whose arguments `$1` to `$5` are a key.
pub(super) fn keyed(sql: &'static str, key: &StoredKey) -> Query<'static, Sqlite, SqliteArguments> {
    sqlx::query(sql)
        .persistent(false)
        .bind(&key.group)
        .bind(&key.handler)
        .bind(&key.position)
        .bind(key.id())
        .bind(key.fingerprint)
}

/// Deletes the attempts of a key, in that transaction.
pub(super) async fn clear(tx: &mut Writer, key: &StoredKey) -> Result<(), StoreError> {
    let cleared = keyed(CLEAR_ATTEMPTS, key).execute(&mut *tx.conn).await;
    cleared.map_err(own_statement).map(drop)
}

/// Marks that no attempt is under way, in that transaction.
pub(super) async fn end_attempt(tx: &mut Writer, key: &StoredKey) -> Result<(), StoreError> {
    let ended = keyed(REFUND_NOTED, key).execute(&mut *tx.conn).await;
    ended.map_err(own_statement).map(drop)
}

impl SqliteStore {
    async fn known(&self, key: &StoredKey, claimed: Option<&str>) -> Result<KnownMessage, StoreError> {
        let mut conn = self.acquire().await?;
        let row = keyed(FIND_KNOWN, key)
            .bind(claimed)
            .fetch_one(&mut *conn)
            .await
            .map_err(own_statement)?;
        RowReader(&row).known().map_err(unavailable)
    }

    /// Notes that an attempt begins, and counts it or not. Returns how many are counted.
    async fn note_attempt(&self, key: &StoredKey, counted: bool) -> Result<u32, StoreError> {
        let mut tx = self.begin_write().await?;
        let row = keyed(NOTE_ATTEMPT, key)
            .bind(i64::from(counted))
            .fetch_one(&mut *tx.conn)
            .await
            .map_err(own_statement)?;
        tx.commit().await?;
        row.try_get(0).map(attempts).map_err(unavailable)
    }
}

impl AttemptStore for SqliteStore {
    fn handled<'a>(
        &'a self,
        group: &'a str,
        message_id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Fingerprint>, StoreError>> {
        Box::pin(async move {
            let mut conn = self.acquire().await?;
            let found = sqlx::query(FIND_HANDLED)
                .persistent(false)
                .bind(group)
                .bind(message_id)
                .fetch_optional(&mut *conn)
                .await
                .map_err(own_statement)?;
            let kept = found.map(|row| row.try_get(0)).transpose().map_err(unavailable)?;
            Ok(kept.map(Fingerprint::from_i64))
        })
    }

    fn begin_attempt<'a>(
        &'a self,
        key: &'a AttemptKey,
        limit: AttemptLimit,
    ) -> BoxFuture<'a, Result<BeginAttempt, StoreError>> {
        Box::pin(async move {
            let stored = stored(key);
            // An id with NUL may have been handled, too: the claim finds out.
            let claimed = key
                .message_id
                .as_deref()
                .filter(|id| limit.claims && CHARSET.has_all(id));
            let known = self.known(&stored, claimed).await?;
            // A handled message needs no attempts.
            let has_leftovers = known.handled.is_some() && known.attempts.is_some();
            let answer = known.decide(limit);
            if has_leftovers {
                self.clear_attempts(key).await?;
            }
            match answer {
                BeginAttempt::Begun(_) => self.note_attempt(&stored, false).await.map(BeginAttempt::Begun),
                answer => Ok(answer),
            }
        })
    }

    fn count_attempt<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move { self.note_attempt(&stored(key), true).await })
    }

    fn refund_attempt<'a>(&'a self, key: &'a AttemptKey, counted: bool) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let key = stored(key);
            let mut tx = self.begin_write().await?;
            let sql = if counted { REFUND_COUNTED } else { REFUND_NOTED };
            keyed(sql, &key).execute(&mut *tx.conn).await.map_err(own_statement)?;
            tx.commit().await
        })
    }

    fn record_failure<'a>(
        &'a self,
        key: &'a AttemptKey,
        counted: bool,
        error: &'a str,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            let key = stored(key);
            let mut tx = self.begin_write().await?;
            let row = keyed(RECORD_FAILURE, &key)
                .bind(CHARSET.error(error))
                .bind(i64::from(!counted))
                .fetch_one(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.commit().await?;
            row.try_get(0).map(attempts).map_err(unavailable)
        })
    }

    fn clear_attempts<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let key = stored(key);
            let mut tx = self.begin_write().await?;
            clear(&mut tx, &key).await?;
            tx.commit().await
        })
    }
}
