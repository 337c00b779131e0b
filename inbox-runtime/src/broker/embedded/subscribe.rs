//! Finding, making and removing durable consumers.

use sqlx::{Connection, SqliteConnection};

use super::{Shared, clock, config::MAX_ACK_WAIT};
use crate::{
    broker::{BrokerError, Subscription},
    handler::StartPosition,
};

/// A durable that was found or made.
pub(super) struct Opened {
    pub(super) id: i64,
    /// In milliseconds.
    pub(super) ack_wait: i64,
    position: i64,
    made: bool,
}

impl Opened {
    pub(super) fn log(&self, subscription: &Subscription) {
        let Subscription { group, subject, .. } = subscription;
        let position = self.position;
        if !self.made {
            tracing::debug!(group, subject, position, "a durable consumer goes on");
        } else if is_lost(subscription) {
            tracing::warn!(
                group,
                subject,
                "the database knows this group and the embedded broker has no durable consumer of it any more: it begins at the \
                 first message that is kept, not at `start = \"new\"`, which would skip what came meanwhile; what was handled \
                 before is recognised by its id"
            );
        } else {
            let start = subscription.start.to_string();
            tracing::info!(group, subject, start, position, "a new durable consumer begins");
        }
    }
}

/// Whether the place of the group is lost, if there is no durable: one that is known isn't new.
fn is_lost(subscription: &Subscription) -> bool {
    subscription.known && subscription.start == StartPosition::New
}

/// Finds or makes the durables of `subscriptions`, all or none.
pub(super) async fn open(shared: &Shared, subscriptions: &[Subscription]) -> Result<Vec<Opened>, BrokerError> {
    let mut writing = shared.db().await?.durable().await?;
    let now = shared.clock.now();
    let transaction = async {
        let mut tx = writing.begin_with("BEGIN IMMEDIATE").await?;
        let mut opened = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            opened.push(find_or_make(&mut tx, subscription, now).await?);
        }
        tx.commit().await?;
        Ok(opened)
    };
    let opened = transaction.await;
    writing.done("subscribe to", opened)
}

async fn find_or_make(
    connection: &mut SqliteConnection,
    subscription: &Subscription,
    now: i64,
) -> Result<Opened, sqlx::Error> {
    let is_there: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM consumers WHERE consumer_group = ? AND subject = ?)")
            .bind(&subscription.group)
            .bind(&subscription.subject)
            .fetch_one(&mut *connection)
            .await?;
    if !is_there {
        let position = begin_after(connection, subscription).await?;
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
    Ok(Opened {
        id,
        ack_wait,
        position,
        made: !is_there,
    })
}

/// The sequence number behind which a new durable begins.
async fn begin_after(connection: &mut SqliteConnection, subscription: &Subscription) -> Result<i64, sqlx::Error> {
    // The last that was given, also where the message is deleted.
    let last: i64 = sqlx::query_scalar("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)")
        .fetch_one(&mut *connection)
        .await?;
    Ok(match subscription.start {
        StartPosition::New if is_lost(subscription) => 0,
        StartPosition::New => last,
        // Beyond the last one it is the next one, as on NATS.
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

/// Removes a durable with all that it holds back. Returns whether it was there.
pub(super) async fn remove(shared: &Shared, group: &str, subject: &str) -> Result<bool, BrokerError> {
    let mut writing = shared.db().await?.durable().await?;
    let removed = sqlx::query("DELETE FROM consumers WHERE consumer_group = ? AND subject = ?")
        .bind(group)
        .bind(subject)
        .execute(&mut *writing)
        .await;
    let removed = writing.done("remove a durable consumer from", removed)?;
    shared.wakes.all();
    Ok(removed.rows_affected() > 0)
}
