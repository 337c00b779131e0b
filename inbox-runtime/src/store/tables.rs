//! Attempts and dead letters, the same on every database but for its clock and its way of keeping times.
//!
//! sqlx checks a statement's arguments and rows against one database's types, so that what is generic here is the text: a
//! macro makes the code for each. Each call is one transaction, and no statement of it is prepared by name: a pool may be
//! behind a transaction pooler that nobody told us about, where a name may stand for somebody else's statement.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::delivery::Headers;

/// A number of attempts as a table has it.
pub(crate) fn attempts(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The reason that a table names.
pub(crate) fn reason(text: &str) -> sqlx::Result<Reason> {
    let found = Reason::ALL.into_iter().find(|reason| reason.as_str() == text);
    found.ok_or_else(|| sqlx::Error::Decode(format!("unknown reason {text}").into()))
}

/// A header's value in the tables: readable where it is text.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
}

/// The headers as the tables keep them: a JSON array of `[name, value]`, a value being text, an array of bytes where it
/// isn't UTF-8, or null.
pub(crate) fn write_headers(headers: &Headers) -> Vec<u8> {
    let value = |value: &[u8]| match std::str::from_utf8(value) {
        Ok(text) => Value::Text(text.to_owned()),
        Err(_) => Value::Bytes(value.to_vec()),
    };
    let rows: Vec<_> = headers.iter().map(|(name, bytes)| (name, bytes.map(value))).collect();
    // Strings, numbers and arrays of them can always be written.
    serde_json::to_vec(&rows).unwrap_or_default()
}

/// What [`write_headers`] made.
pub(crate) fn read_headers(bytes: &[u8]) -> sqlx::Result<Headers> {
    let rows: Vec<(String, Option<Value>)> =
        serde_json::from_slice(bytes).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let mut headers = Headers::new();
    for (name, value) in rows {
        match value {
            Some(Value::Text(text)) => headers.append(name, Bytes::from(text)),
            Some(Value::Bytes(bytes)) => headers.append(name, Bytes::from(bytes)),
            None => headers.append_null(name),
        }
    }
    Ok(headers)
}

/// Implements [`Records`](super::Records) for `$records`, which has a `store` and a `charset()`.
///
/// The store has `writer()`, which gives something with a `conn` to write on, `begin` and `commit`, `reader()`, which gives
/// something with a `conn` to read from and `done`, a `pool`, and functions `migrate`, `describe` and `file`.
macro_rules! records {
    (
        $records:ident, $row:ty,
        // The database's clock.
        now: $now:literal,
        // What makes a later time of a number of milliseconds.
        later: [$later:literal, $later_end:literal],
        // What makes a time of milliseconds since 1970, and back.
        time: [$time:literal, $time_end:literal],
        millis: [$millis:literal, $millis_end:literal],
    ) => {
        use futures_util::future::BoxFuture;
        use sqlx::Row;

        use crate::{
            failpoint::failpoint,
            store::{
                AttemptKey, AttemptLimit, BeginAttempt, ConnectError, DeadLetter, DeadLetterStatus, Fingerprint, Migrate,
                MigrateError, NewDeadLetter, Records, ReplayToken, Stranded, StoreError,
                tables::{attempts, read_headers, reason, write_headers},
                texts::{StoredKey, from_millis, millis, to_millis},
            },
        };

        /// The columns of a dead letter, with times in milliseconds.
        macro_rules! columns {
            () => {
                concat!(
                    "id, consumer_group, handler, position, subject, message_id, fingerprint, headers, payload, \
                     message_key, reason, error, attempts, replay_lease, ",
                    $millis, "published_at", $millis_end, " AS published_at, ",
                    $millis, "first_failed_at", $millis_end, " AS first_failed_at, ",
                    $millis, "dead_at", $millis_end, " AS dead_at, ",
                    $millis, "replay_requested_at", $millis_end, " AS replay_requested_at"
                )
            };
        }

        /// The row of a key in `inbox_attempts`, whose columns are the first five arguments.
        macro_rules! of_key {
            () => {
                "consumer_group = $1 AND handler = $2 AND position = $3 AND message_id = $4 AND fingerprint = $5"
            };
        }

        /// A statement whose first five arguments are a key.
        macro_rules! keyed {
            ($statement:expr, $key:expr) => {
                $statement
                    .persistent(false)
                    .bind(&$key.group)
                    .bind(&$key.handler)
                    .bind(&$key.position)
                    .bind($key.id())
                    .bind($key.fingerprint)
            };
        }

        impl $records {
            async fn stored(&self, key: &AttemptKey) -> Result<StoredKey, StoreError> {
                Ok(StoredKey::new(self.charset().await?, key))
            }

            /// What is known of a message that was delivered before, in one look.
            async fn known(&self, key: &StoredKey, claimed: Option<&str>) -> Result<$row, StoreError> {
                let mut reader = self.store.reader().await?;
                let statement = sqlx::query(concat!(
                    "SELECT (SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $6) AS \
                     handled, EXISTS (SELECT 1 FROM inbox_dead_letters WHERE consumer_group = $1 AND handler = $2 AND \
                     position = $3 AND coalesce(message_id, '') = $4 AND fingerprint = $5 AND replay_at IS NULL) AS \
                     buried, attempts, unfinished, last_error FROM (SELECT 1) AS one LEFT JOIN inbox_attempts ON ",
                    of_key!()
                ));
                let row = keyed!(statement, key)
                    .bind(claimed)
                    .fetch_one(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                reader.done().await?;
                Ok(row)
            }

            /// Notes that an attempt begins, and counts it or not. Returns how many are counted.
            async fn note_attempt(&self, key: &StoredKey, counted: bool) -> Result<u32, StoreError> {
                let mut writer = self.store.writer().await?;
                writer.begin().await?;
                let statement = sqlx::query_scalar(
                    "INSERT INTO inbox_attempts (consumer_group, handler, position, message_id, fingerprint, attempts, \
                     unfinished) VALUES ($1, $2, $3, $4, $5, $6, TRUE) \
                     ON CONFLICT (consumer_group, handler, position, message_id, fingerprint) DO UPDATE SET \
                     attempts = inbox_attempts.attempts + excluded.attempts, unfinished = TRUE RETURNING attempts",
                );
                let made = keyed!(statement, key)
                    .bind(i64::from(counted))
                    .fetch_one(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                writer.commit().await?;
                Ok(attempts(made))
            }
        }

        impl Records for $records {
            fn migrate(&self, mode: Migrate) -> BoxFuture<'_, Result<(), MigrateError>> {
                Box::pin(super::migrate::migrate(&self.store.pool, mode))
            }

            fn reach(&self) -> BoxFuture<'_, Result<(), ConnectError>> {
                Box::pin(self.store.reach())
            }

            fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>> {
                Box::pin(self.store.try_write())
            }

            fn probe(&self) -> BoxFuture<'_, Result<(), StoreError>> {
                Box::pin(crate::store::Store::probe(&self.store))
            }

            fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>> {
                Box::pin(self.store.describe())
            }

            fn file(&self) -> Option<std::path::PathBuf> {
                self.store.file()
            }

            fn knows<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
                Box::pin(async move {
                    let mut reader = self.store.reader().await?;
                    let statement = sqlx::query_scalar(
                        "SELECT EXISTS (SELECT 1 FROM inbox_events WHERE consumer_group = $1) OR EXISTS (SELECT 1 FROM \
                         inbox_dead_letters WHERE consumer_group = $1) OR EXISTS (SELECT 1 FROM inbox_attempts WHERE \
                         consumer_group = $1)",
                    );
                    let known = statement.persistent(false).bind(group).fetch_one(&mut *reader.conn).await;
                    let known = known.map_err(trouble)?;
                    reader.done().await?;
                    Ok(known)
                })
            }

            fn handled<'a>(
                &'a self,
                group: &'a str,
                message_id: &'a str,
            ) -> BoxFuture<'a, Result<Option<Fingerprint>, StoreError>> {
                Box::pin(async move {
                    let mut reader = self.store.reader().await?;
                    let found = sqlx::query_scalar(
                        "SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2",
                    )
                    .persistent(false)
                    .bind(group)
                    .bind(message_id)
                    .fetch_optional(&mut *reader.conn)
                    .await;
                    let found: Option<i64> = match found {
                        Ok(found) => found,
                        // What can't be compared with anything in the table isn't there.
                        Err(error) if is_of_the_message(&error) => return Ok(None),
                        Err(error) => return Err(trouble(error)),
                    };
                    reader.done().await?;
                    Ok(found.map(Fingerprint::from_i64))
                })
            }

            fn begin_attempt<'a>(
                &'a self,
                key: &'a AttemptKey,
                limit: AttemptLimit,
            ) -> BoxFuture<'a, Result<BeginAttempt, StoreError>> {
                Box::pin(async move {
                    let charset = self.charset().await?;
                    let stored = StoredKey::new(charset, key);
                    // An id with other characters may be there too, which the claim finds out.
                    let claimed = key.message_id.as_deref().filter(|id| limit.claims && charset.has_all(id));
                    let known = self.known(&stored, claimed).await?;
                    let known = || {
                        sqlx::Result::Ok((
                            known.try_get::<Option<i64>, _>("handled")?,
                            known.try_get::<bool, _>("buried")?,
                            known.try_get::<Option<i64>, _>("attempts")?,
                            known.try_get::<Option<bool>, _>("unfinished")?,
                            known.try_get::<Option<String>, _>("last_error")?,
                        ))
                    };
                    let (handled, buried, made, unfinished, error) = known().map_err(unavailable)?;
                    if let Some(fingerprint) = handled {
                        if made.is_some() {
                            self.clear_attempts(key).await?;
                        }
                        return Ok(BeginAttempt::Handled(Fingerprint::from_i64(fingerprint)));
                    }
                    if buried {
                        return Ok(BeginAttempt::Buried);
                    }
                    let made = made.map_or(0, attempts);
                    // Of the first delivery of a message there is nothing on record.
                    let unfinished = unfinished.unwrap_or(!limit.replay);
                    if limit.max.is_some_and(|max| made >= max) {
                        return Ok(BeginAttempt::Exhausted { attempts: made, unfinished, error });
                    }
                    if unfinished {
                        return Ok(BeginAttempt::Suspect);
                    }
                    self.note_attempt(&stored, false).await.map(BeginAttempt::Begun)
                })
            }

            fn count_attempt<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<u32, StoreError>> {
                Box::pin(async move { self.note_attempt(&self.stored(key).await?, true).await })
            }

            fn take_back_attempt<'a>(
                &'a self,
                key: &'a AttemptKey,
                counted: bool,
            ) -> BoxFuture<'a, Result<(), StoreError>> {
                Box::pin(async move {
                    let key = self.stored(key).await?;
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    let statement = if counted {
                        // What ran alone does so again: it has not come to an end yet.
                        concat!(
                            "UPDATE inbox_attempts SET attempts = attempts - 1 WHERE ",
                            of_key!(),
                            " AND attempts > 0"
                        )
                    } else {
                        concat!("UPDATE inbox_attempts SET unfinished = FALSE WHERE ", of_key!())
                    };
                    keyed!(sqlx::query(statement), key)
                        .execute(&mut *writer.conn)
                        .await
                        .map_err(trouble)?;
                    writer.commit().await
                })
            }

            fn record_failure<'a>(
                &'a self,
                key: &'a AttemptKey,
                counted: bool,
                error: &'a str,
            ) -> BoxFuture<'a, Result<u32, StoreError>> {
                Box::pin(async move {
                    let charset = self.charset().await?;
                    let key = StoredKey::new(charset, key);
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    let statement = sqlx::query_scalar(concat!(
                        "INSERT INTO inbox_attempts (consumer_group, handler, position, message_id, fingerprint, \
                         attempts, last_error) VALUES ($1, $2, $3, $4, $5, 1, $6) \
                         ON CONFLICT (consumer_group, handler, position, message_id, fingerprint) DO UPDATE SET \
                         attempts = inbox_attempts.attempts + $7, unfinished = FALSE, \
                         last_error = excluded.last_error, last_at = ",
                        $now,
                        " RETURNING attempts"
                    ));
                    let made = keyed!(statement, key)
                        .bind(charset.error(error))
                        .bind(i64::from(!counted))
                        .fetch_one(&mut *writer.conn)
                        .await
                        .map_err(trouble)?;
                    writer.commit().await?;
                    Ok(attempts(made))
                })
            }

            fn clear_attempts<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>> {
                Box::pin(async move {
                    let key = self.stored(key).await?;
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    clear(&mut writer, &key).await?;
                    writer.commit().await
                })
            }

            fn bury<'a>(&'a self, letter: &'a NewDeadLetter) -> BoxFuture<'a, Result<bool, StoreError>> {
                Box::pin(async move {
                    let charset = self.charset().await?;
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    let written = match letter.replay {
                        None => insert(&mut writer, charset, letter).await?,
                        Some(token) => {
                            let statement = concat!(
                                "UPDATE inbox_dead_letters SET reason = $3, error = $4, attempts = $5, replay_at = NULL, \
                                 replay_taken = FALSE, replay_requested_at = NULL, dead_at = ",
                                $now,
                                " WHERE id = $1 AND replay_lease = $2"
                            );
                            let done = sqlx::query(statement)
                                .persistent(false)
                                .bind(token.id)
                                .bind(token.lease)
                                .bind(letter.reason.as_str())
                                .bind(charset.error(&letter.error))
                                .bind(i64::from(letter.attempts))
                                .execute(&mut *writer.conn)
                                .await
                                .map_err(trouble)?;
                            done.rows_affected()
                        }
                    };
                    // The last attempt has come to its end with that.
                    let ended = sqlx::query(concat!("UPDATE inbox_attempts SET unfinished = FALSE WHERE ", of_key!()));
                    keyed!(ended, StoredKey::new(charset, &letter.key))
                        .execute(&mut *writer.conn)
                        .await
                        .map_err(trouble)?;
                    failpoint!("in_dead_letter");
                    writer.commit().await?;
                    Ok(written > 0)
                })
            }

            fn take_replays<'a>(
                &'a self,
                group: &'a str,
                handler: &'a str,
                max: usize,
                lease: std::time::Duration,
            ) -> BoxFuture<'a, Result<Vec<(DeadLetter, ReplayToken)>, StoreError>> {
                Box::pin(async move {
                    let handler = self.charset().await?.handler(handler);
                    // A look first: it needs no lock, and mostly there is nothing.
                    let mut reader = self.store.reader().await?;
                    let any: Option<i64> = sqlx::query_scalar(concat!(
                        "SELECT id FROM inbox_dead_letters \
                         WHERE consumer_group = $1 AND handler = $2 AND replay_at <= ",
                        $now,
                        " LIMIT 1"
                    ))
                    .persistent(false)
                    .bind(group)
                    .bind(&handler)
                    .fetch_optional(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                    reader.done().await?;
                    if any.is_none() {
                        return Ok(Vec::new());
                    }
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    // The condition stands twice: what another process has taken meanwhile must not be taken again.
                    let rows = sqlx::query(concat!(
                        "UPDATE inbox_dead_letters SET replay_lease = replay_lease + 1, replay_taken = TRUE, \
                         replay_at = ", $later, "$4", $later_end,
                        " WHERE replay_at <= ", $now, " AND id IN (SELECT id FROM inbox_dead_letters \
                         WHERE consumer_group = $1 AND handler = $2 AND replay_at <= ", $now,
                        " ORDER BY id LIMIT $3) RETURNING ",
                        columns!()
                    ))
                    .persistent(false)
                    .bind(group)
                    .bind(&handler)
                    .bind(i64::try_from(max).unwrap_or(i64::MAX))
                    .bind(millis(lease))
                    .fetch_all(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    writer.commit().await?;
                    let taken = |row| {
                        let letter = read(row)?;
                        let token = ReplayToken { id: letter.id, lease: row.try_get("replay_lease")? };
                        Ok((letter, token))
                    };
                    rows.iter().map(taken).collect::<sqlx::Result<_>>().map_err(unavailable)
                })
            }

            fn postpone_replay(
                &self,
                token: ReplayToken,
                taken: bool,
                delay: std::time::Duration,
            ) -> BoxFuture<'_, Result<bool, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    let done = sqlx::query(concat!(
                        "UPDATE inbox_dead_letters SET replay_taken = $4, replay_at = ", $later, "$3", $later_end,
                        " WHERE id = $1 AND replay_lease = $2 AND replay_at IS NOT NULL"
                    ))
                    .persistent(false)
                    .bind(token.id)
                    .bind(token.lease)
                    .bind(millis(delay))
                    .bind(taken)
                    .execute(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    writer.commit().await?;
                    Ok(done.rows_affected() > 0)
                })
            }

            fn remove(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    let key = sqlx::query(
                        "DELETE FROM inbox_dead_letters WHERE id = $1 \
                         RETURNING consumer_group, handler, position, message_id, fingerprint",
                    )
                    .persistent(false)
                    .bind(id)
                    .fetch_optional(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    if let Some(row) = &key {
                        clear(&mut writer, &read_key(row).map_err(unavailable)?).await?;
                    }
                    writer.commit().await?;
                    Ok(key.is_some())
                })
            }

            fn replayed(&self, token: ReplayToken) -> BoxFuture<'_, Result<bool, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    let done = sqlx::query(
                        "DELETE FROM inbox_dead_letters WHERE id = $1 AND replay_lease = $2 AND replay_at IS NOT NULL",
                    )
                    .persistent(false)
                    .bind(token.id)
                    .bind(token.lease)
                    .execute(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    writer.commit().await?;
                    Ok(done.rows_affected() > 0)
                })
            }

            fn dead_letter(&self, id: i64) -> BoxFuture<'_, Result<Option<DeadLetter>, StoreError>> {
                Box::pin(async move {
                    let mut reader = self.store.reader().await?;
                    let row = sqlx::query(concat!("SELECT ", columns!(), " FROM inbox_dead_letters WHERE id = $1"))
                        .persistent(false)
                        .bind(id)
                        .fetch_optional(&mut *reader.conn)
                        .await
                        .map_err(trouble)?;
                    reader.done().await?;
                    row.as_ref().map(read).transpose().map_err(unavailable)
                })
            }

            fn dead_letters<'a>(
                &'a self,
                group: Option<&'a str>,
                after: i64,
                limit: u32,
            ) -> BoxFuture<'a, Result<Vec<DeadLetter>, StoreError>> {
                Box::pin(async move {
                    let charset = self.charset().await?;
                    let mut reader = self.store.reader().await?;
                    let rows = sqlx::query(concat!(
                        "SELECT ",
                        columns!(),
                        " FROM inbox_dead_letters WHERE id > $1 AND ($2 IS NULL OR consumer_group = $2) \
                         ORDER BY id LIMIT $3"
                    ))
                    .persistent(false)
                    .bind(after)
                    .bind(group.map(|group| charset.storable(group)))
                    .bind(i64::from(limit))
                    .fetch_all(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                    reader.done().await?;
                    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(unavailable)
                })
            }

            fn replay(&self, id: i64) -> BoxFuture<'_, Result<Option<(String, String)>, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.store.writer().await?;
                    writer.begin().await?;
                    // Whoever is at it goes on.
                    let found = sqlx::query(concat!(
                        "UPDATE inbox_dead_letters SET \
                         replay_requested_at = coalesce(replay_requested_at, ", $now, "), \
                         replay_at = CASE WHEN replay_taken AND replay_at > ", $now, " THEN replay_at ELSE ", $now, " END, \
                         replay_taken = replay_taken AND coalesce(replay_at > ", $now, ", FALSE)",
                        " WHERE id = $1 RETURNING consumer_group, handler, position, message_id, fingerprint, replay_taken"
                    ))
                    .persistent(false)
                    .bind(id)
                    .fetch_optional(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    let Some(row) = found else {
                        writer.commit().await?;
                        return Ok(None);
                    };
                    let key = read_key(&row).map_err(unavailable)?;
                    if !row.try_get::<bool, _>("replay_taken").map_err(unavailable)? {
                        clear(&mut writer, &key).await?;
                    }
                    writer.commit().await?;
                    Ok(Some((key.group, key.handler)))
                })
            }

            fn stranded(&self, wait: std::time::Duration) -> BoxFuture<'_, Result<Vec<Stranded>, StoreError>> {
                Box::pin(async move {
                    let mut reader = self.store.reader().await?;
                    // Who is at one of a handler's letters has the others before it.
                    let rows = sqlx::query(concat!(
                        "SELECT consumer_group, handler, count(*) AS letters FROM inbox_dead_letters AS due \
                         WHERE replay_at < ", $later, "$1", $later_end, " AND NOT EXISTS (SELECT 1 FROM \
                         inbox_dead_letters AS taken WHERE taken.consumer_group = due.consumer_group AND \
                         taken.handler = due.handler AND taken.replay_at >= ", $now, " AND taken.replay_taken) \
                         GROUP BY consumer_group, handler ORDER BY consumer_group, handler LIMIT 10"
                    ))
                    .persistent(false)
                    .bind(-millis(wait))
                    .fetch_all(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                    reader.done().await?;
                    let stranded = |row: &$row| {
                        Ok(Stranded {
                            group: row.try_get("consumer_group")?,
                            handler: row.try_get("handler")?,
                            letters: row.try_get("letters")?,
                        })
                    };
                    rows.iter().map(stranded).collect::<sqlx::Result<_>>().map_err(unavailable)
                })
            }
        }

        async fn clear(writer: &mut Writer, key: &StoredKey) -> Result<(), StoreError> {
            keyed!(sqlx::query(concat!("DELETE FROM inbox_attempts WHERE ", of_key!())), key)
                .execute(&mut *writer.conn)
                .await
                .map_err(trouble)?;
            Ok(())
        }

        /// Writes a dead letter, or everything of it anew where there is one of that message.
        async fn insert(
            writer: &mut Writer,
            charset: crate::store::texts::Charset,
            letter: &NewDeadLetter,
        ) -> Result<u64, StoreError> {
            let key = StoredKey::new(charset, &letter.key);
            let statement = sqlx::query(concat!(
                "INSERT INTO inbox_dead_letters (consumer_group, handler, position, fingerprint, message_id, subject, \
                 headers, payload, reason, error, attempts, message_key, published_at, first_failed_at) \
                 VALUES ($1, $2, $3, $5, $6, $7, $8, $9, $10, $11, $12, $13, ", $time, "$14", $time_end,
                ", coalesce((SELECT first_at FROM inbox_attempts WHERE ", of_key!(), "), ", $now, ")) \
                 ON CONFLICT (consumer_group, handler, position, coalesce(message_id, ''), fingerprint) DO UPDATE SET \
                 subject = excluded.subject, headers = excluded.headers, payload = excluded.payload, \
                 message_key = excluded.message_key, published_at = excluded.published_at, reason = excluded.reason, \
                 error = excluded.error, attempts = excluded.attempts, first_failed_at = excluded.first_failed_at, \
                 replay_at = NULL, replay_taken = FALSE, replay_requested_at = NULL, dead_at = ", $now
            ));
            let done = keyed!(statement, key)
                .bind(key.message_id.as_deref())
                .bind(charset.storable(&letter.subject))
                .bind(write_headers(&letter.headers))
                .bind(letter.payload.as_deref())
                .bind(letter.reason.as_str())
                .bind(charset.error(&letter.error))
                .bind(i64::from(letter.attempts))
                .bind(letter.message_key.as_deref())
                .bind(letter.published_at.map(to_millis))
                .execute(&mut *writer.conn)
                .await
                .map_err(trouble)?;
            Ok(done.rows_affected())
        }

        fn read_key(row: &$row) -> sqlx::Result<StoredKey> {
            Ok(StoredKey {
                group: row.try_get("consumer_group")?,
                handler: row.try_get("handler")?,
                position: row.try_get("position")?,
                message_id: row.try_get("message_id")?,
                fingerprint: row.try_get("fingerprint")?,
            })
        }

        fn read(row: &$row) -> sqlx::Result<DeadLetter> {
            let replay_requested_at = row.try_get::<Option<i64>, _>("replay_requested_at")?.map(from_millis);
            Ok(DeadLetter {
                id: row.try_get("id")?,
                group: row.try_get("consumer_group")?,
                handler: row.try_get("handler")?,
                subject: row.try_get("subject")?,
                message_id: row.try_get("message_id")?,
                position: row.try_get("position")?,
                fingerprint: Fingerprint::from_i64(row.try_get("fingerprint")?),
                headers: read_headers(row.try_get("headers")?)?,
                payload: row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Into::into),
                message_key: row.try_get::<Option<Vec<u8>>, _>("message_key")?.map(Into::into),
                published_at: row.try_get::<Option<i64>, _>("published_at")?.map(from_millis),
                reason: reason(row.try_get("reason")?)?,
                error: row.try_get("error")?,
                attempts: attempts(row.try_get("attempts")?),
                first_failed_at: from_millis(row.try_get("first_failed_at")?),
                dead_at: from_millis(row.try_get("dead_at")?),
                status: match replay_requested_at {
                    Some(_) => DeadLetterStatus::Replaying,
                    None => DeadLetterStatus::Dead,
                },
                replay_requested_at,
            })
        }
    };
}

pub(crate) use records;
