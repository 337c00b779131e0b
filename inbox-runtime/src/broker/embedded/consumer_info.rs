//! How far each durable consumer is, for tests and operations.

use std::time::Duration;

use sqlx::{Row, sqlite::SqliteRow};

use super::{clock::until, shared::EmbeddedShared};
use crate::broker::{BrokerError, subject};

/// How far a durable consumer is.
///
/// Each message of its subject is counted in exactly one of [`waiting`](Self::waiting),
/// [`ack_pending`](Self::ack_pending) and [`acked`](Self::acked), in one snapshot, unless the consumer started after it.
/// Everything is done when [`is_idle`](Self::is_idle).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerInfo {
    /// The consumer group.
    pub group: String,
    /// The subject, which may have wildcards.
    pub subject: String,
    /// How long a delivery stays leased, in whole milliseconds, as set by the newest subscription.
    pub ack_wait: Duration,
    /// The sequence number of the last message that was scanned, from 1; 0 before the first.
    pub position: u64,
    /// Messages that were never delivered to the group.
    pub waiting: u64,
    /// Messages that were delivered and aren't settled: leased, or to be redelivered.
    pub ack_pending: u64,
    /// Messages that were acknowledged.
    pub acked: u64,
}

impl ConsumerInfo {
    /// Whether every message is acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.ack_pending == 0
    }
}

/// The consumers in the order of their names: all of them, or the one of `name`.
pub(super) async fn consumers(
    shared: &EmbeddedShared,
    name: Option<(&str, &str)>,
) -> Result<Vec<ConsumerInfo>, BrokerError> {
    let mut connection = shared.db().await?.reader().await?;
    let read = async {
        // One statement, for a consistent snapshot. GLOB matches at least what the subject does.
        let rows = sqlx::query(
            "SELECT c.consumer_group, c.subject, c.position, c.ack_wait, c.acked, \
             (SELECT count(*) FROM pending WHERE consumer = c.id) AS ack_pending, \
             m.subject AS waiting_subject, count(m.seq) AS waiting \
             FROM consumers c \
             LEFT JOIN messages m ON m.seq > c.position AND m.subject GLOB replace(c.subject, '>', '*') \
             WHERE ?1 IS NULL OR (c.consumer_group = ?1 AND c.subject = ?2) \
             GROUP BY c.id, m.subject ORDER BY c.consumer_group, c.subject",
        )
        .bind(name.map(|(group, _)| group))
        .bind(name.map(|(_, subject)| subject))
        .fetch_all(&mut *connection)
        .await?;
        collect(&rows)
    };
    let result = read.await;
    connection.finish("read the consumers of", result)
}

/// A row is a consumer and a subject of waiting messages, or a consumer for which none wait.
fn collect(rows: &[SqliteRow]) -> Result<Vec<ConsumerInfo>, sqlx::Error> {
    let mut consumers: Vec<ConsumerInfo> = Vec::new();
    for row in rows {
        let (group, subject): (&str, &str) = (row.try_get("consumer_group")?, row.try_get("subject")?);
        if consumers
            .last()
            .is_none_or(|last| last.group != group || last.subject != subject)
        {
            consumers.push(ConsumerInfo {
                group: group.to_owned(),
                subject: subject.to_owned(),
                ack_wait: until(row.try_get("ack_wait")?, 0),
                position: count(row.try_get("position")?),
                waiting: 0,
                ack_pending: count(row.try_get("ack_pending")?),
                acked: count(row.try_get("acked")?),
            });
        }
        let waiting: Option<&str> = row.try_get("waiting_subject")?;
        if let (Some(last), Some(waiting)) = (consumers.last_mut(), waiting)
            && subject::matches(&last.subject, waiting)
        {
            last.waiting += count(row.try_get("waiting")?);
        }
    }
    Ok(consumers)
}

fn count(number: i64) -> u64 {
    number.unsigned_abs()
}
