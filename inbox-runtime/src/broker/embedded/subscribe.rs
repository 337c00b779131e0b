//! Finds, creates and removes durable consumers.

use sqlx::{Connection, SqliteConnection};

use super::{clock, limits::MAX_ACK_WAIT, shared::EmbeddedShared};
use crate::{
    broker::{BrokerError, Subscription},
    handler::StartPosition,
};

/// A consumer that was found or created.
pub(super) struct OpenedConsumer {
    pub(super) id: i64,
    /// In milliseconds.
    pub(super) ack_wait: i64,
    position: i64,
    created: bool,
}

impl OpenedConsumer {
    pub(super) fn log(&self, subscription: &Subscription) {
        let Subscription { group, subject, .. } = subscription;
        let position = self.position;
        if !self.created {
            tracing::debug!(group, subject, position, "opened a durable consumer");
        } else if is_position_lost(subscription) {
            tracing::warn!(
                group,
                subject,
                "the database has records of the group, but the embedded broker's durable consumer is gone; it starts with the first \
                 message that is kept and not with new ones, so that nothing is skipped: what was handled is deduplicated by \
                 message id"
            );
        } else {
            let start = subscription.start.to_string();
            tracing::info!(group, subject, start, position, "created a durable consumer");
        }
    }
}

/// Whether a group without a consumer has lost its position: a group that the database knows is not new.
fn is_position_lost(subscription: &Subscription) -> bool {
    subscription.known && subscription.start == StartPosition::New
}

/// Finds or creates the consumers of `subscriptions`, all or none.
pub(super) async fn subscribe(
    shared: &EmbeddedShared,
    subscriptions: &[Subscription],
) -> Result<Vec<OpenedConsumer>, BrokerError> {
    let mut connection = shared.db().await?.durable_writer().await?;
    let now = shared.clock.now();
    let transaction = async {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        let mut opened = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            opened.push(find_or_create(&mut tx, subscription, now).await?);
        }
        tx.commit().await?;
        Ok(opened)
    };
    let opened = transaction.await;
    connection.finish("subscribe to", opened)
}

async fn find_or_create(
    connection: &mut SqliteConnection,
    subscription: &Subscription,
    now: i64,
) -> Result<OpenedConsumer, sqlx::Error> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM consumers WHERE consumer_group = ? AND subject = ?)")
            .bind(&subscription.group)
            .bind(&subscription.subject)
            .fetch_one(&mut *connection)
            .await?;
    if !exists {
        let position = start_position(connection, subscription).await?;
        sqlx::query(
            "INSERT INTO consumers (consumer_group, subject, ack_wait, position, began_after) VALUES (?1, ?2, 0, ?3, ?3)",
        )
        .bind(&subscription.group)
        .bind(&subscription.subject)
        .bind(position)
        .execute(&mut *connection)
        .await?;
    }
    let (id, ack_wait, position) = sqlx::query_as(
        "UPDATE consumers SET ack_wait = ?, seen_at = ? WHERE consumer_group = ? AND subject = ? \
         RETURNING id, ack_wait, position",
    )
    .bind(clock::millis(subscription.ack_wait).clamp(1, MAX_ACK_WAIT))
    .bind(now)
    .bind(&subscription.group)
    .bind(&subscription.subject)
    .fetch_one(&mut *connection)
    .await?;
    Ok(OpenedConsumer {
        id,
        ack_wait,
        position,
        created: !exists,
    })
}

/// The position of a new consumer: the sequence number after which it starts.
async fn start_position(connection: &mut SqliteConnection, subscription: &Subscription) -> Result<i64, sqlx::Error> {
    // The last one assigned, even if that message was deleted.
    let last: i64 = sqlx::query_scalar("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)")
        .fetch_one(&mut *connection)
        .await?;
    Ok(match subscription.start {
        StartPosition::New if is_position_lost(subscription) => 0,
        StartPosition::New => last,
        // After the last message it is the next one, as on NATS.
        StartPosition::Sequence(first) => i64::try_from(first).map_or(last, |first| (first - 1).clamp(0, last)),
        StartPosition::Time(time) => {
            let first: Option<i64> =
                sqlx::query_scalar("SELECT seq FROM messages WHERE published_at >= ? ORDER BY seq LIMIT 1")
                    .bind(time)
                    .fetch_optional(&mut *connection)
                    .await?;
            first.map_or(last, |first| first - 1)
        }
        _ => 0,
    })
}

/// Removes a consumer with its pending deliveries. Returns whether it existed.
pub(super) async fn remove(shared: &EmbeddedShared, group: &str, subject: &str) -> Result<bool, BrokerError> {
    let mut connection = shared.db().await?.durable_writer().await?;
    let removed = sqlx::query("DELETE FROM consumers WHERE consumer_group = ? AND subject = ?")
        .bind(group)
        .bind(subject)
        .execute(&mut *connection)
        .await;
    let removed = connection.finish("remove a durable consumer from", removed)?;
    shared.wakeups.wake_all();
    Ok(removed.rows_affected() > 0)
}
