//! The lag of a group: its messages that are not acknowledged, over all processes that share the file.

use std::sync::{Arc, Weak};

use sqlx::SqliteConnection;

use super::{
    consumer::Consumer,
    limits::{LAG_INTERVAL, SCAN_MESSAGES},
    shared::EmbeddedShared,
};
use crate::broker::{BrokerError, SourceStatus, subject};

/// The count so far.
#[derive(Clone, Copy, Debug)]
struct MessageCount {
    /// The messages of the consumer up to `end`, acknowledged ones included.
    messages: i64,
    end: i64,
}

/// Reports the lag every few seconds, until the broker is dropped. Each time only new messages are counted.
pub(super) async fn report(shared: Weak<EmbeddedShared>, consumer: Arc<Consumer>, status: SourceStatus) {
    let mut counted = None;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let lag = read_lag(&shared, &consumer, &mut counted).await;
        if lag.is_err() {
            counted = None;
        }
        status.set_lag(lag.unwrap_or_default());
        drop(shared);
        tokio::time::sleep(LAG_INTERVAL).await;
    }
}

/// Counts new messages and returns the lag; `None` if the consumer was removed.
async fn read_lag(
    shared: &EmbeddedShared,
    consumer: &Consumer,
    counted: &mut Option<MessageCount>,
) -> Result<Option<u64>, BrokerError> {
    loop {
        let mut connection = shared.db().await?.reader().await?;
        let step = count_step(&mut connection, consumer, *counted).await;
        let Some(step) = connection.finish("read the lag in", step)? else {
            return Ok(None);
        };
        *counted = Some(step.count);
        if step.is_complete {
            return Ok(u64::try_from(step.count.messages - step.acked).ok());
        }
    }
}

/// The result of counting a bounded number of messages.
struct CountStep {
    count: MessageCount,
    acked: i64,
    is_complete: bool,
}

async fn count_step(
    connection: &mut SqliteConnection,
    consumer: &Consumer,
    counted: Option<MessageCount>,
) -> Result<Option<CountStep>, sqlx::Error> {
    // One statement, for a consistent snapshot.
    let row: Option<(i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT acked, position, (SELECT count(*) FROM pending WHERE consumer = c.id), \
         coalesce((SELECT max(seq) FROM messages), 0) FROM consumers c WHERE id = ?",
    )
    .bind(consumer.id)
    .fetch_optional(&mut *connection)
    .await?;
    let Some((acked, position, pending, last)) = row else {
        return Ok(None);
    };
    let count = counted.unwrap_or(MessageCount {
        messages: acked + pending,
        end: position,
    });
    let end = last.min(count.end.saturating_add(SCAN_MESSAGES));
    let new: Vec<(String, i64)> =
        sqlx::query_as("SELECT subject, count(*) FROM messages WHERE seq > ? AND seq <= ? GROUP BY subject")
            .bind(count.end)
            .bind(end)
            .fetch_all(connection)
            .await?;
    let new = new
        .iter()
        .filter(|(subject, _)| subject::matches(&consumer.subject, subject));
    let count = MessageCount {
        messages: count.messages + new.map(|(_, count)| count).sum::<i64>(),
        end: end.max(count.end),
    };
    Ok(Some(CountStep {
        count,
        acked,
        is_complete: end >= last,
    }))
}
