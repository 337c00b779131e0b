//! Attempts and dead letters, the same on every database but for its clock and its way of keeping times.
//!
//! sqlx checks a statement's arguments and rows against one database's types, so that what is generic here is the text: a
//! macro makes the code for each.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::delivery::Headers;

/// Whole milliseconds, for a statement's argument.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// A text as every database can keep it: PostgreSQL has no NUL in a text.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

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

/// Milliseconds since 1970, as the tables keep times.
pub(crate) fn to_millis(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |millis| -millis),
    }
}

/// The time of a number of milliseconds since 1970; one that the clock can't show becomes 1970.
pub(crate) fn from_millis(millis: i64) -> SystemTime {
    let distance = Duration::from_millis(millis.unsigned_abs());
    let time = if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Implements [`Records`](super::Records) for `$records`, which wraps a `$store`.
///
/// The store has `writer()`, which gives something with a `conn` to write on, `begin` and `commit`, `reader()`, which gives something with a
/// `conn` to read from and `done`, a `pool`, and functions `migrate`, `describe` and `file`.
macro_rules! records {
    (
        $records:ident($store:ty), $row:ty,
        // The database's clock.
        now: $now:literal,
        // What makes a later time of a number of milliseconds.
        later: [$later:literal, $later_end:literal],
        // What makes a time of milliseconds since 1970, and back.
        time: [$time:literal, $time_end:literal],
        millis: [$millis:literal, $millis_end:literal],
    ) => {
        use sqlx::Row;

        use crate::{
            failpoint::failpoint,
            store::{
                AttemptKey, Attempts, BoxFuture, ConnectError, DeadLetter, DeadLetterStatus, Fingerprint, Migrate, MigrateError,
                NewDeadLetter, Records, StoreError,
                tables::{attempts, from_millis, millis, read_headers, reason, storable, to_millis, write_headers},
            },
        };

        /// The tables beside the inbox.
        #[derive(Clone, Debug)]
        pub(super) struct $records(pub(super) $store);

        /// The columns of a dead letter, with times in milliseconds.
        macro_rules! columns {
            () => {
                concat!(
                    "id, consumer_group, handler, position, subject, message_id, headers, payload, message_key, \
                     reason, error, attempts, ",
                    $millis, "published_at", $millis_end, " AS published_at, ",
                    $millis, "first_failed_at", $millis_end, " AS first_failed_at, ",
                    $millis, "dead_at", $millis_end, " AS dead_at, ",
                    $millis, "replay_at", $millis_end, " AS replay_at"
                )
            };
        }

        impl Records for $records {
            fn migrate(&self, mode: Migrate) -> BoxFuture<'_, Result<(), MigrateError>> {
                Box::pin(super::migrate::migrate(&self.0.pool, mode))
            }

            fn reach(&self) -> BoxFuture<'_, Result<(), ConnectError>> {
                Box::pin(self.0.reach())
            }

            fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>> {
                Box::pin(self.0.try_write())
            }

            fn probe(&self) -> BoxFuture<'_, Result<(), StoreError>> {
                Box::pin(crate::store::Store::probe(&self.0))
            }

            fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>> {
                Box::pin(self.0.describe())
            }

            fn file(&self) -> Option<std::path::PathBuf> {
                self.0.file()
            }

            fn handled<'a>(
                &'a self,
                group: &'a str,
                message_id: &'a str,
            ) -> BoxFuture<'a, Result<Option<Fingerprint>, StoreError>> {
                Box::pin(async move {
                    let mut reader = self.0.reader().await?;
                    let found: Option<i64> = sqlx::query_scalar(
                        "SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2",
                    )
                    .bind(group)
                    .bind(message_id)
                    .fetch_optional(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                    reader.done().await?;
                    Ok(found.map(Fingerprint::from_i64))
                })
            }

            fn begin_attempt<'a>(
                &'a self,
                key: &'a AttemptKey,
                max: Option<u32>,
            ) -> BoxFuture<'a, Result<Attempts, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    let buried: Option<i64> = sqlx::query_scalar(
                        "SELECT id FROM inbox_dead_letters \
                         WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND replay_at IS NULL",
                    )
                    .bind(&key.group)
                    .bind(&key.handler)
                    .bind(&key.position)
                    .fetch_optional(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    if buried.is_some() {
                        writer.commit().await?;
                        return Ok(Attempts::Buried);
                    }
                    let begun: Option<i64> = sqlx::query_scalar(
                        "INSERT INTO inbox_attempts (consumer_group, handler, position, attempts) \
                         VALUES ($1, $2, $3, 1) ON CONFLICT (consumer_group, handler, position) DO UPDATE \
                         SET attempts = inbox_attempts.attempts + 1 WHERE inbox_attempts.attempts < $4 \
                         RETURNING attempts",
                    )
                    .bind(&key.group)
                    .bind(&key.handler)
                    .bind(&key.position)
                    .bind(max.map_or(i64::MAX, i64::from))
                    .fetch_optional(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    if let Some(begun) = begun {
                        writer.commit().await?;
                        return Ok(Attempts::Begun(attempts(begun)));
                    }
                    let (made, error) = sqlx::query_as(
                        "SELECT attempts, last_error FROM inbox_attempts \
                         WHERE consumer_group = $1 AND handler = $2 AND position = $3",
                    )
                    .bind(&key.group)
                    .bind(&key.handler)
                    .bind(&key.position)
                    .fetch_one(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    writer.commit().await?;
                    Ok(Attempts::Exhausted(attempts(made), error))
                })
            }

            fn take_back_attempt<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    sqlx::query(
                        "UPDATE inbox_attempts SET attempts = attempts - 1 \
                         WHERE consumer_group = $1 AND handler = $2 AND position = $3 AND attempts > 0",
                    )
                    .bind(&key.group)
                    .bind(&key.handler)
                    .bind(&key.position)
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
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    let made = sqlx::query_scalar(concat!(
                        "INSERT INTO inbox_attempts (consumer_group, handler, position, attempts, last_error) \
                         VALUES ($1, $2, $3, 1, $4) ON CONFLICT (consumer_group, handler, position) DO UPDATE \
                         SET attempts = inbox_attempts.attempts + $5, last_error = excluded.last_error, last_at = ",
                        $now,
                        " RETURNING attempts"
                    ))
                    .bind(&key.group)
                    .bind(&key.handler)
                    .bind(&key.position)
                    .bind(storable(error))
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
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    clear(&mut writer, &key.group, &key.handler, &key.position).await?;
                    writer.commit().await
                })
            }

            fn bury<'a>(&'a self, letter: &'a NewDeadLetter) -> BoxFuture<'a, Result<(), StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    upsert(&mut writer, letter).await?;
                    failpoint!("in_dead_letter");
                    writer.commit().await
                })
            }

            fn take_replays<'a>(
                &'a self,
                group: &'a str,
                handler: &'a str,
                max: usize,
                lease: std::time::Duration,
            ) -> BoxFuture<'a, Result<Vec<DeadLetter>, StoreError>> {
                Box::pin(async move {
                    // A look first: it needs no lock, and mostly there is nothing.
                    let mut reader = self.0.reader().await?;
                    let any: Option<i64> = sqlx::query_scalar(concat!(
                        "SELECT id FROM inbox_dead_letters \
                         WHERE consumer_group = $1 AND handler = $2 AND replay_at <= ",
                        $now,
                        " LIMIT 1"
                    ))
                    .bind(group)
                    .bind(handler)
                    .fetch_optional(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                    reader.done().await?;
                    if any.is_none() {
                        return Ok(Vec::new());
                    }
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    // The condition stands twice: what another process has taken meanwhile must not be taken again.
                    let rows = sqlx::query(concat!(
                        "UPDATE inbox_dead_letters SET replay_at = ", $later, "$4", $later_end,
                        " WHERE replay_at <= ", $now, " AND id IN (SELECT id FROM inbox_dead_letters \
                         WHERE consumer_group = $1 AND handler = $2 AND replay_at <= ", $now,
                        " ORDER BY id LIMIT $3) RETURNING ",
                        columns!()
                    ))
                    .bind(group)
                    .bind(handler)
                    .bind(i64::try_from(max).unwrap_or(i64::MAX))
                    .bind(millis(lease))
                    .fetch_all(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    writer.commit().await?;
                    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(unavailable)
                })
            }

            fn postpone_replay(&self, id: i64, delay: std::time::Duration) -> BoxFuture<'_, Result<(), StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    sqlx::query(concat!(
                        "UPDATE inbox_dead_letters SET replay_at = ", $later, "$2", $later_end,
                        " WHERE id = $1 AND replay_at IS NOT NULL"
                    ))
                    .bind(id)
                    .bind(millis(delay))
                    .execute(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    writer.commit().await
                })
            }

            fn remove(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    let key: Option<(String, String, String)> = sqlx::query_as(
                        "DELETE FROM inbox_dead_letters WHERE id = $1 RETURNING consumer_group, handler, position",
                    )
                    .bind(id)
                    .fetch_optional(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    if let Some((group, handler, position)) = &key {
                        clear(&mut writer, group, handler, position).await?;
                    }
                    writer.commit().await?;
                    Ok(key.is_some())
                })
            }

            fn replayed(&self, id: i64) -> BoxFuture<'_, Result<(), StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    sqlx::query("DELETE FROM inbox_dead_letters WHERE id = $1 AND replay_at IS NOT NULL")
                        .bind(id)
                        .execute(&mut *writer.conn)
                        .await
                        .map_err(trouble)?;
                    writer.commit().await
                })
            }

            fn dead_letter(&self, id: i64) -> BoxFuture<'_, Result<Option<DeadLetter>, StoreError>> {
                Box::pin(async move {
                    let mut reader = self.0.reader().await?;
                    let row = sqlx::query(concat!("SELECT ", columns!(), " FROM inbox_dead_letters WHERE id = $1"))
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
                    let mut reader = self.0.reader().await?;
                    let rows = sqlx::query(concat!(
                        "SELECT ",
                        columns!(),
                        " FROM inbox_dead_letters WHERE id > $1 AND ($2 IS NULL OR consumer_group = $2) \
                         ORDER BY id LIMIT $3"
                    ))
                    .bind(after)
                    .bind(group)
                    .bind(i64::from(limit))
                    .fetch_all(&mut *reader.conn)
                    .await
                    .map_err(trouble)?;
                    reader.done().await?;
                    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(unavailable)
                })
            }

            fn replay(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
                Box::pin(async move {
                    let mut writer = self.0.writer().await?;
                    writer.begin().await?;
                    let key: Option<(String, String, String)> = sqlx::query_as(concat!(
                        "UPDATE inbox_dead_letters SET replay_at = ",
                        $now,
                        " WHERE id = $1 RETURNING consumer_group, handler, position"
                    ))
                    .bind(id)
                    .fetch_optional(&mut *writer.conn)
                    .await
                    .map_err(trouble)?;
                    if let Some((group, handler, position)) = &key {
                        clear(&mut writer, group, handler, position).await?;
                    }
                    writer.commit().await?;
                    Ok(key.is_some())
                })
            }
        }

        async fn clear(writer: &mut Writer, group: &str, handler: &str, position: &str) -> Result<(), StoreError> {
            sqlx::query("DELETE FROM inbox_attempts WHERE consumer_group = $1 AND handler = $2 AND position = $3")
                .bind(group)
                .bind(handler)
                .bind(position)
                .execute(&mut *writer.conn)
                .await
                .map_err(trouble)?;
            Ok(())
        }

        async fn upsert(writer: &mut Writer, letter: &NewDeadLetter) -> Result<(), StoreError> {
            sqlx::query(concat!(
                "INSERT INTO inbox_dead_letters (consumer_group, handler, position, subject, message_id, headers, \
                 payload, reason, error, attempts, message_key, published_at, first_failed_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, ", $time, "$12", $time_end,
                ", coalesce((SELECT first_at FROM inbox_attempts \
                 WHERE consumer_group = $1 AND handler = $2 AND position = $3), ", $now, ")) \
                 ON CONFLICT (consumer_group, handler, position) DO UPDATE SET message_id = excluded.message_id, \
                 reason = excluded.reason, error = excluded.error, attempts = excluded.attempts, replay_at = NULL, \
                 dead_at = ", $now
            ))
            .bind(&letter.key.group)
            .bind(&letter.key.handler)
            .bind(&letter.key.position)
            .bind(storable(&letter.subject))
            .bind(letter.message_id.as_deref().map(storable))
            .bind(write_headers(&letter.headers))
            .bind(letter.payload.as_deref())
            .bind(letter.reason.as_str())
            .bind(storable(&letter.error))
            .bind(i64::from(letter.attempts))
            .bind(letter.message_key.as_deref())
            .bind(letter.published_at.map(to_millis))
            .execute(&mut *writer.conn)
            .await
            .map_err(trouble)?;
            Ok(())
        }

        fn read(row: &$row) -> sqlx::Result<DeadLetter> {
            Ok(DeadLetter {
                id: row.try_get("id")?,
                group: row.try_get("consumer_group")?,
                handler: row.try_get("handler")?,
                subject: row.try_get("subject")?,
                message_id: row.try_get("message_id")?,
                position: row.try_get("position")?,
                headers: read_headers(row.try_get("headers")?)?,
                payload: row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Into::into),
                message_key: row.try_get::<Option<Vec<u8>>, _>("message_key")?.map(Into::into),
                published_at: row.try_get::<Option<i64>, _>("published_at")?.map(from_millis),
                reason: reason(row.try_get("reason")?)?,
                error: row.try_get("error")?,
                attempts: attempts(row.try_get("attempts")?),
                first_failed_at: from_millis(row.try_get("first_failed_at")?),
                dead_at: from_millis(row.try_get("dead_at")?),
                status: match row.try_get::<Option<i64>, _>("replay_at")? {
                    Some(_) => DeadLetterStatus::Replaying,
                    None => DeadLetterStatus::Dead,
                },
            })
        }
    };
}

pub(crate) use records;
