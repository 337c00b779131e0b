//! The lag of a group: how many of its messages are not acknowledged, over all processes that share the file.

use std::sync::{Arc, Weak};

use super::{
    Shared,
    config::{LAG, SCAN},
    take::Durable,
};
use crate::broker::{BrokerError, SourceStatus, subject};

/// What was counted: every message of the durable is acknowledged, out, or waiting.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// All messages of the durable up to `end`.
    messages: i64,
    end: i64,
}

/// Reports the lag of a durable every few seconds, until the broker is dropped. What came since the last time is counted, never
/// all of it again.
pub(super) async fn report(shared: Weak<Shared>, durable: Arc<Durable>, status: SourceStatus) {
    let mut counted = None;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let lag = ask(&shared, &durable, &mut counted).await;
        if lag.is_err() {
            counted = None;
        }
        status.set_lag(lag.unwrap_or_default());
        drop(shared);
        tokio::time::sleep(LAG).await;
    }
}

/// Counts what is new, and returns the lag; `None` if the durable is gone.
async fn ask(shared: &Shared, durable: &Durable, counted: &mut Option<Counted>) -> Result<Option<u64>, BrokerError> {
    loop {
        let mut reading = shared.db().await?.reading().await?;
        let read = async {
            // One statement, so that all is of one moment.
            let row: Option<(i64, i64, i64, i64)> = sqlx::query_as(
                "SELECT acked, position, (SELECT count(*) FROM pending WHERE consumer = c.id), \
                 coalesce((SELECT max(seq) FROM messages), 0) FROM consumers c WHERE id = ?",
            )
            .bind(durable.id)
            .fetch_optional(&mut *reading)
            .await?;
            let Some((acked, position, pending, last)) = row else {
                return Ok(None);
            };
            let known = counted.unwrap_or(Counted {
                messages: acked + pending,
                end: position,
            });
            let end = last.min(known.end.saturating_add(SCAN));
            let new: Vec<(String, i64)> =
                sqlx::query_as("SELECT subject, count(*) FROM messages WHERE seq > ? AND seq <= ? GROUP BY subject")
                    .bind(known.end)
                    .bind(end)
                    .fetch_all(&mut *reading)
                    .await?;
            let new = new
                .iter()
                .filter(|(subject, _)| subject::matches(&durable.subject, subject));
            let known = Counted {
                messages: known.messages + new.map(|(_, count)| count).sum::<i64>(),
                end: end.max(known.end),
            };
            Ok(Some((known, acked, end >= last)))
        };
        let result = read.await;
        let Some((known, acked, complete)) = reading.done("ask for the lag in", result)? else {
            return Ok(None);
        };
        *counted = Some(known);
        if complete {
            return Ok(u64::try_from(known.messages - acked).ok());
        }
    }
}
