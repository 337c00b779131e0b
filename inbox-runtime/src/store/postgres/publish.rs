//! Writing into the outbox in PostgreSQL: as text in the round trip of a commit, and as a statement in a transaction of the
//! application's.

use std::fmt::Write;

use sqlx::{PgConnection, Postgres};

use super::{
    connection::PostgresSession,
    outbox::LANES,
    simple_text::{push_bytes, push_text},
};
use crate::store::{
    NewOutboxMessage, PublishError,
    encoding::{millis, write_headers},
    transaction,
};

/// What writes messages, as statements of a simple query, each with a semicolon behind it.
#[derive(Debug, Default)]
pub(super) struct OutboxSql {
    pub(super) text: String,
    /// How many statements it has.
    pub(super) statements: usize,
}

/// `$7` is the delay in milliseconds.
const LATER: &str = "
    INSERT INTO inbox_outbox_later (lane, message_id, subject, message_key, headers, payload, due_at)
    VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 millisecond')";

const NOW: &str = "
    INSERT INTO inbox_outbox (lane, message_id, subject, message_key, headers, payload) VALUES ($1, $2, $3, $4, $5, $6)";

const CANCEL: &str = "DELETE FROM inbox_outbox_later WHERE message_id = $1";

impl PostgresSession {
    /// What writes what a handler has published. The tables are named with the schema that was found at the start, and written to by
    /// the role that the session was lent with, whatever the handler has set.
    pub(super) fn outbox_sql(&self, messages: &[NewOutboxMessage]) -> OutboxSql {
        let mut sql = OutboxSql::default();
        if messages.is_empty() {
            return sql;
        }
        if !self.is_pooled() {
            let restore = &self.restore;
            sql.push(format_args!(
                "SELECT CASE WHEN current_user <> session_user THEN set_config('role', 'none', false) END{restore}"
            ));
        }
        let claim_sql = self.store.claim_sql();
        let schema = claim_sql.events.strip_suffix("inbox_events").unwrap_or_default();
        let (later, now): (Vec<_>, Vec<_>) = messages.iter().partition(|message| message.delay.is_some());
        if !now.is_empty() {
            sql.insert(
                &format!("{schema}inbox_outbox (lane, message_id, subject, message_key, headers, payload)"),
                &now,
            );
        }
        if !later.is_empty() {
            let into = "inbox_outbox_later (lane, message_id, subject, message_key, headers, payload, due_at)";
            sql.insert(&format!("{schema}{into}"), &later);
        }
        sql
    }
}

impl OutboxSql {
    fn push(&mut self, statement: std::fmt::Arguments<'_>) {
        let _ = write!(self.text, "{statement}; ");
        self.statements += 1;
    }

    /// One statement for all of them: their numbers are in their order.
    fn insert(&mut self, into: &str, messages: &[&NewOutboxMessage]) {
        let bytes: usize = messages
            .iter()
            .map(|one| one.message.payload.as_ref().map_or(0, bytes::Bytes::len))
            .sum();
        let sql = &mut self.text;
        sql.reserve(bytes * 2 + messages.len() * 512);
        let _ = write!(sql, "INSERT INTO {into} VALUES ");
        for (index, outgoing) in messages.iter().enumerate() {
            let message = &outgoing.message;
            let _ = write!(sql, "{}({}, ", if index > 0 { ", " } else { "" }, outgoing.lane(LANES));
            push_text(sql, &outgoing.message_id);
            sql.push_str(", ");
            push_text(sql, &message.subject);
            sql.push_str(", ");
            push_bytes(sql, message.key.as_deref());
            sql.push_str(", ");
            push_bytes(sql, Some(&write_headers(&message.headers)));
            sql.push_str(", ");
            push_bytes(sql, message.payload.as_deref());
            if let Some(delay) = outgoing.delay {
                let _ = write!(
                    sql,
                    ", clock_timestamp() + {} * interval '1 millisecond'",
                    millis(delay)
                );
            }
            sql.push(')');
        }
        sql.push_str("; ");
        self.statements += 1;
    }
}

/// Writes a message on a connection with an open transaction of the application's.
pub(super) async fn publish_on(conn: &mut PgConnection, outgoing: &NewOutboxMessage) -> Result<(), PublishError> {
    transaction::require::<Postgres>(conn)?;
    let message = &outgoing.message;
    let query = sqlx::query(if outgoing.delay.is_some() { LATER } else { NOW })
        .persistent(false)
        .bind(i64::from(outgoing.lane(LANES)))
        .bind(&outgoing.message_id)
        .bind(&message.subject)
        .bind(message.key.as_deref())
        .bind(write_headers(&message.headers))
        .bind(message.payload.as_deref());
    let query = match outgoing.delay {
        Some(delay) => query.bind(millis(delay)),
        None => query,
    };
    query.execute(conn).await?;
    Ok(())
}

/// Deletes the delayed messages of an id on such a connection. Returns how many there were.
pub(super) async fn cancel_on(conn: &mut PgConnection, message_id: &str) -> Result<u64, PublishError> {
    transaction::require::<Postgres>(conn)?;
    let cancelled = sqlx::query(CANCEL)
        .persistent(false)
        .bind(message_id)
        .execute(conn)
        .await?;
    Ok(cancelled.rows_affected())
}
