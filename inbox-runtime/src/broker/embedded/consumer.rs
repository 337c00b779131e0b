//! The durable consumer of a source, and its state in the database.

use std::{sync::atomic::AtomicBool, time::Duration};

use sqlx::{Row, SqliteConnection};
use tokio::sync::Notify;

use super::{
    clock::until,
    limits::{MAX_PAUSE, POLL_INTERVAL},
    storage::Storage,
};
use crate::broker::BrokerError;

/// A durable consumer that a source of this process reads.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) id: i64,
    pub(super) group: String,
    pub(super) subject: String,
    /// Whether a message is delivered only after the one before it is settled.
    pub(super) ordered: bool,
    /// Wakes a pull that waits for a delivery.
    pub(super) woken: Notify,
    /// This process has published a message: the next fetch needn't look first whether there is one.
    pub(super) published: AtomicBool,
}

impl Consumer {
    /// The error after it was removed. It is not recreated under a running program, which would repeat or skip messages
    /// unasked.
    pub(super) fn removed(&self, storage: &Storage) -> BrokerError {
        let Self { group, subject, .. } = self;
        BrokerError::Unavailable {
            message: format!(
                "the durable consumer of the group `{group}` on `{subject}` was removed from the embedded broker ({storage}) \
                 while this program had it open; start the program again to create a new one, which starts as `start` says, or at \
                 the first message that is kept if the inbox knows the group"
            ),
            source: None,
        }
    }
}

/// What a fetch needs to know of a consumer. Times are in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct ConsumerState {
    /// In milliseconds.
    pub(super) ack_wait: i64,
    pub(super) position: i64,
    /// The first message after the position.
    pub(super) next: Option<i64>,
    pub(super) last: Option<i64>,
    /// When the first pending delivery is due.
    visible_at: Option<i64>,
    /// When the last pending delivery is due.
    last_visible_at: Option<i64>,
    /// When the last pending delivery was leased or nakked.
    taken_at: Option<i64>,
}

impl ConsumerState {
    /// Reads the state, by indexes only; `None` if the consumer was removed.
    pub(super) async fn read(
        connection: &mut SqliteConnection,
        consumer: &Consumer,
    ) -> Result<Option<Self>, sqlx::Error> {
        let row = sqlx::query(
            "SELECT ack_wait, position, \
             (SELECT min(seq) FROM messages WHERE seq > c.position) AS next, \
             (SELECT max(seq) FROM messages) AS last, \
             (SELECT min(visible_at) FROM pending WHERE consumer = c.id) AS visible_at, \
             (SELECT max(visible_at) FROM pending WHERE consumer = c.id) AS last_visible_at, \
             (SELECT max(taken_at) FROM pending WHERE consumer = c.id) AS taken_at \
             FROM consumers c WHERE id = ?",
        )
        .bind(consumer.id)
        .fetch_optional(connection)
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Self {
            ack_wait: row.try_get("ack_wait")?,
            position: row.try_get("position")?,
            next: row.try_get("next")?,
            last: row.try_get("last")?,
            visible_at: row.try_get("visible_at")?,
            last_visible_at: row.try_get("last_visible_at")?,
            taken_at: row.try_get("taken_at")?,
        }))
    }

    /// How long to wait before the next fetch.
    pub(super) fn pause(&self, now: i64) -> Duration {
        match self.visible_at {
            None => MAX_PAUSE,
            Some(at) if at > now => until(at, now).min(MAX_PAUSE),
            // Due and not fetched: its message was deleted. Fetching again at once would be a hot loop.
            Some(_) => POLL_INTERVAL,
        }
    }

    /// Whether there may be something to fetch.
    pub(super) fn is_ready(&self, consumer: &Consumer, now: i64) -> bool {
        !self.is_blocked(consumer, now) && (self.next.is_some() || self.has_due(now))
    }

    /// Whether all messages wait for a pending delivery of an ordered consumer.
    pub(super) fn is_blocked(&self, consumer: &Consumer, now: i64) -> bool {
        let leased = self.last_visible_at.is_some_and(|at| at > now) && self.taken_at.is_none_or(|at| at <= now);
        consumer.ordered && leased
    }

    /// Whether a pending delivery is due. One that was leased in the future is: the clock was put back, and its due
    /// time could be years away.
    pub(super) fn has_due(&self, now: i64) -> bool {
        self.visible_at.is_some_and(|at| at <= now) || self.taken_at.is_some_and(|at| at > now)
    }
}
