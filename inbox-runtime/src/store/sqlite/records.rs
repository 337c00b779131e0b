//! Attempts and dead letters on SQLite.

use std::{path::PathBuf, time::Duration};

use sqlx::{Row, Sqlite, sqlite::SqliteRow};

use super::{SqliteStore, Writer, migrate, trouble, unavailable};
use crate::{
    delivery::Headers,
    failpoint::failpoint,
    file::resolve,
    store::{
        AttemptKey, Attempts, BoxFuture, DeadLetter, DeadLetterStatus, Fingerprint, Migrate, MigrateError,
        NewDeadLetter, Reason, Records, StoreError,
        records::{from_millis, to_millis},
        transaction,
    },
};

/// SQLite's clock, in milliseconds since 1970.
macro_rules! now {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

macro_rules! columns {
    () => {
        "id, consumer_group, handler, position, subject, message_id, headers, payload, published_at, reason, error, \
         attempts, first_failed_at, dead_at, replay_at"
    };
}

/// The tables beside the inbox.
#[derive(Clone, Debug)]
pub(super) struct SqliteRecords(pub(super) SqliteStore);

impl Records for SqliteRecords {
    fn migrate(&self, mode: Migrate) -> BoxFuture<'_, Result<(), MigrateError>> {
        Box::pin(migrate::migrate(&self.0.pool, mode))
    }

    fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        Box::pin(async move {
            let row = sqlx::query("SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode)")
                .fetch_one(&self.0.pool)
                .await
                .map_err(unavailable)?;
            let (version, journal): (String, String) = row
                .try_get(0)
                .and_then(|version| Ok((version, row.try_get(1)?)))
                .map_err(unavailable)?;
            Ok(format!("SQLite {version} (journal_mode {journal})"))
        })
    }

    fn handled<'a>(
        &'a self,
        group: &'a str,
        message_id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Fingerprint>, StoreError>> {
        Box::pin(async move {
            sqlx::query_scalar("SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2")
                .bind(group)
                .bind(message_id)
                .fetch_optional(&self.0.pool)
                .await
                .map(|found| found.map(Fingerprint::from_i64))
                .map_err(trouble)
        })
    }

    fn begin_attempt<'a>(
        &'a self,
        key: &'a AttemptKey,
        max: Option<u32>,
    ) -> BoxFuture<'a, Result<Attempts, StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
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
                return Ok(Attempts::Buried);
            }
            let begun: Option<u32> = sqlx::query_scalar(
                "INSERT INTO inbox_attempts (consumer_group, handler, position, attempts) VALUES ($1, $2, $3, 1) \
                 ON CONFLICT (consumer_group, handler, position) DO UPDATE SET attempts = attempts + 1 \
                 WHERE attempts < $4 RETURNING attempts",
            )
            .bind(&key.group)
            .bind(&key.handler)
            .bind(&key.position)
            .bind(max.map_or(i64::from(u32::MAX), i64::from))
            .fetch_optional(&mut *writer.conn)
            .await
            .map_err(trouble)?;
            if let Some(attempts) = begun {
                return Ok(Attempts::Begun(attempts));
            }
            let (attempts, error) = sqlx::query_as(
                "SELECT attempts, last_error FROM inbox_attempts \
                 WHERE consumer_group = $1 AND handler = $2 AND position = $3",
            )
            .bind(&key.group)
            .bind(&key.handler)
            .bind(&key.position)
            .fetch_one(&mut *writer.conn)
            .await
            .map_err(trouble)?;
            Ok(Attempts::Exhausted(attempts, error))
        })
    }

    fn take_back_attempt<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
            sqlx::query(
                "UPDATE inbox_attempts SET attempts = max(attempts - 1, 0) \
                 WHERE consumer_group = $1 AND handler = $2 AND position = $3",
            )
            .bind(&key.group)
            .bind(&key.handler)
            .bind(&key.position)
            .execute(&mut *writer.conn)
            .await
            .map_err(trouble)?;
            Ok(())
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
            sqlx::query_scalar(concat!(
                "INSERT INTO inbox_attempts (consumer_group, handler, position, attempts, last_error) \
                 VALUES ($1, $2, $3, 1, $4) \
                 ON CONFLICT (consumer_group, handler, position) DO UPDATE \
                 SET attempts = attempts + $5, last_error = excluded.last_error, last_at = ",
                now!(),
                " RETURNING attempts"
            ))
            .bind(&key.group)
            .bind(&key.handler)
            .bind(&key.position)
            .bind(error)
            .bind(i64::from(!counted))
            .fetch_one(&mut *writer.conn)
            .await
            .map_err(trouble)
        })
    }

    fn clear_attempts<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
            clear(&mut writer, &key.group, &key.handler, &key.position).await
        })
    }

    fn bury<'a>(&'a self, letter: &'a NewDeadLetter) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
            transaction::begin::<Sqlite>(&mut writer.conn, "BEGIN IMMEDIATE")
                .await
                .map_err(trouble)?;
            // Whatever goes wrong from here on, the connection is not used again.
            let mut guarded = CloseOnDrop::new(writer);
            upsert(guarded.writer(), letter).await?;
            failpoint!("in_dead_letter");
            transaction::commit::<Sqlite>(&mut guarded.writer().conn)
                .await
                .map_err(trouble)?;
            guarded.keep();
            Ok(())
        })
    }

    fn take_replays<'a>(
        &'a self,
        group: &'a str,
        handler: &'a str,
        max: usize,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Vec<DeadLetter>, StoreError>> {
        Box::pin(async move {
            // A look first: it needs no turn to write, and mostly there is nothing.
            let any: Option<i64> = sqlx::query_scalar(concat!(
                "SELECT id FROM inbox_dead_letters WHERE consumer_group = $1 AND handler = $2 AND replay_at <= ",
                now!(),
                " LIMIT 1"
            ))
            .bind(group)
            .bind(handler)
            .fetch_optional(&self.0.pool)
            .await
            .map_err(trouble)?;
            if any.is_none() {
                return Ok(Vec::new());
            }
            let mut writer = self.0.writer().await?;
            let rows = sqlx::query(concat!(
                "UPDATE inbox_dead_letters SET replay_at = ",
                now!(),
                " + $4 WHERE id IN (SELECT id FROM inbox_dead_letters \
                 WHERE consumer_group = $1 AND handler = $2 AND replay_at <= ",
                now!(),
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
            rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(unavailable)
        })
    }

    fn postpone_replay(&self, id: i64, delay: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
            sqlx::query(concat!(
                "UPDATE inbox_dead_letters SET replay_at = ",
                now!(),
                " + $2 WHERE id = $1 AND replay_at IS NOT NULL"
            ))
            .bind(id)
            .bind(millis(delay))
            .execute(&mut *writer.conn)
            .await
            .map_err(trouble)?;
            Ok(())
        })
    }

    fn remove(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
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
            Ok(key.is_some())
        })
    }

    fn replayed(&self, id: i64) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
            sqlx::query("DELETE FROM inbox_dead_letters WHERE id = $1 AND replay_at IS NOT NULL")
                .bind(id)
                .execute(&mut *writer.conn)
                .await
                .map_err(trouble)?;
            Ok(())
        })
    }

    fn dead_letter(&self, id: i64) -> BoxFuture<'_, Result<Option<DeadLetter>, StoreError>> {
        Box::pin(async move {
            let row = sqlx::query(concat!("SELECT ", columns!(), " FROM inbox_dead_letters WHERE id = $1"))
                .bind(id)
                .fetch_optional(&self.0.pool)
                .await
                .map_err(trouble)?;
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
            let rows = sqlx::query(concat!(
                "SELECT ",
                columns!(),
                " FROM inbox_dead_letters WHERE id > $1 AND ($2 IS NULL OR consumer_group = $2) ORDER BY id LIMIT $3"
            ))
            .bind(after)
            .bind(group)
            .bind(limit)
            .fetch_all(&self.0.pool)
            .await
            .map_err(trouble)?;
            rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(unavailable)
        })
    }

    fn replay(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut writer = self.0.writer().await?;
            transaction::begin::<Sqlite>(&mut writer.conn, "BEGIN IMMEDIATE")
                .await
                .map_err(trouble)?;
            let mut guarded = CloseOnDrop::new(writer);
            let key: Option<(String, String, String)> = sqlx::query_as(concat!(
                "UPDATE inbox_dead_letters SET replay_at = ",
                now!(),
                " WHERE id = $1 RETURNING consumer_group, handler, position"
            ))
            .bind(id)
            .fetch_optional(&mut *guarded.writer().conn)
            .await
            .map_err(trouble)?;
            if let Some((group, handler, position)) = &key {
                clear(guarded.writer(), group, handler, position).await?;
            }
            transaction::commit::<Sqlite>(&mut guarded.writer().conn)
                .await
                .map_err(trouble)?;
            guarded.keep();
            Ok(key.is_some())
        })
    }

    fn file(&self) -> Option<PathBuf> {
        Some(resolve(self.0.pool.connect_options().get_filename()))
    }
}

/// A connection with an open transaction: closed unless the transaction was ended.
struct CloseOnDrop {
    writer: Writer,
    keep: bool,
}

impl CloseOnDrop {
    fn new(writer: Writer) -> Self {
        Self { writer, keep: false }
    }

    fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if !self.keep {
            self.writer.conn.close_on_drop();
        }
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
        "INSERT INTO inbox_dead_letters (consumer_group, handler, position, subject, message_id, headers, payload, \
         published_at, reason, error, attempts, first_failed_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, coalesce((SELECT first_at FROM inbox_attempts \
         WHERE consumer_group = $1 AND handler = $2 AND position = $3), ",
        now!(),
        ")) ON CONFLICT (consumer_group, handler, position) DO UPDATE SET message_id = excluded.message_id, \
         reason = excluded.reason, error = excluded.error, attempts = excluded.attempts, replay_at = NULL, dead_at = ",
        now!()
    ))
    .bind(&letter.key.group)
    .bind(&letter.key.handler)
    .bind(&letter.key.position)
    .bind(&letter.subject)
    .bind(&letter.message_id)
    .bind(letter.headers.to_bytes())
    .bind(letter.payload.as_deref())
    .bind(letter.published_at.map(to_millis))
    .bind(letter.reason.as_str())
    .bind(&letter.error)
    .bind(letter.attempts)
    .execute(&mut *writer.conn)
    .await
    .map_err(trouble)?;
    Ok(())
}

fn read(row: &SqliteRow) -> sqlx::Result<DeadLetter> {
    let reason: String = row.try_get("reason")?;
    let headers: Vec<u8> = row.try_get("headers")?;
    Ok(DeadLetter {
        id: row.try_get("id")?,
        group: row.try_get("consumer_group")?,
        handler: row.try_get("handler")?,
        subject: row.try_get("subject")?,
        message_id: row.try_get("message_id")?,
        position: row.try_get("position")?,
        headers: Headers::from_bytes(&headers).map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        payload: row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Into::into),
        published_at: row.try_get::<Option<i64>, _>("published_at")?.map(from_millis),
        reason: Reason::parse(&reason).ok_or_else(|| sqlx::Error::Decode(format!("unknown reason {reason}").into()))?,
        error: row.try_get("error")?,
        attempts: row.try_get("attempts")?,
        first_failed_at: from_millis(row.try_get("first_failed_at")?),
        dead_at: from_millis(row.try_get("dead_at")?),
        status: match row.try_get::<Option<i64>, _>("replay_at")? {
            Some(_) => DeadLetterStatus::Replaying,
            None => DeadLetterStatus::Dead,
        },
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}
