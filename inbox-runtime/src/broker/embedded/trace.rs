//! What happened to each message of a consumer, and its redelivery: for the test kit.

use std::time::Duration;

use sqlx::{Connection, Row};

use super::{clock::until, message, shared::EmbeddedShared};
use crate::{
    broker::{BrokerError, subject},
    delivery::Delivery,
};

/// How far a message is with a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not delivered yet.
    Waiting,
    /// Delivered and not acknowledged; it is redelivered after this time.
    Pending(Duration),
    Acked,
}

/// A message and its stage.
#[derive(Clone, Debug)]
pub(crate) struct TracedMessage {
    pub(crate) delivery: Delivery,
    pub(crate) stage: Stage,
    seq: i64,
}

/// Every message of a consumer's subject, oldest first. One before its start counts as acknowledged.
pub(super) async fn trace(
    shared: &EmbeddedShared,
    group: &str,
    pattern: &str,
) -> Result<Vec<TracedMessage>, BrokerError> {
    let db = shared.db().await?;
    let now = shared.clock.now();
    let mut connection = db.reader().await?;
    let rows = sqlx::query(
        "SELECT m.seq, m.subject, m.published_at, m.headers, m.payload, c.position, p.visible_at, \
         coalesce(p.delivery_count, 0) AS delivery_count \
         FROM consumers c JOIN messages m LEFT JOIN pending p ON p.consumer = c.id AND p.seq = m.seq \
         WHERE c.consumer_group = ? AND c.subject = ? ORDER BY m.seq",
    )
    .bind(group)
    .bind(pattern)
    .fetch_all(&mut *connection)
    .await;
    let traced = rows.and_then(|rows| {
        let traced = rows.iter().map(|row| {
            let seq: i64 = row.try_get("seq")?;
            let due: Option<i64> = row.try_get("visible_at")?;
            let stage = match due {
                Some(due) => Stage::Pending(until(due, now)),
                None if seq > row.try_get("position")? => Stage::Waiting,
                None => Stage::Acked,
            };
            let delivery = message::delivery(&db.instance, row)?;
            Ok(TracedMessage { delivery, stage, seq })
        });
        traced.collect::<Result<Vec<_>, sqlx::Error>>()
    });
    let mut traced = connection.finish("trace the messages of", traced)?;
    traced.retain(|traced| subject::matches(pattern, &traced.delivery.subject));
    Ok(traced)
}

/// Redelivers a delivered message at once, even an acknowledged one, as if its ack had been lost.
pub(super) async fn redeliver(
    shared: &EmbeddedShared,
    group: &str,
    pattern: &str,
    traced: &TracedMessage,
) -> Result<(), BrokerError> {
    let mut connection = shared.db().await?.durable_writer().await?;
    let now = shared.clock.now();
    let transaction = async {
        let mut tx = connection.begin().await?;
        // The delivery count of an acknowledged message is lost; with 1 the next delivery is a redelivery in any case.
        sqlx::query(
            "INSERT INTO pending (consumer, seq, delivery_count, taken_at, visible_at) \
             SELECT id, ?3, 1, ?4, ?4 FROM consumers WHERE consumer_group = ?1 AND subject = ?2 \
             ON CONFLICT (consumer, seq) DO UPDATE SET taken_at = excluded.taken_at, visible_at = excluded.visible_at",
        )
        .bind(group)
        .bind(pattern)
        .bind(traced.seq)
        .bind(now)
        .execute(&mut *tx)
        .await?;
        sqlx::query("UPDATE consumers SET acked = acked - ? WHERE consumer_group = ? AND subject = ?")
            .bind(i64::from(traced.stage == Stage::Acked))
            .bind(group)
            .bind(pattern)
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    };
    let redelivered = transaction.await;
    connection.finish("redeliver a message of", redelivered)?;
    shared.wakeups.wake_all();
    Ok(())
}
