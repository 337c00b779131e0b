//! What the broker knows of each message, and a redelivery of one that was acknowledged: for users' tests.

use std::time::Duration;

use sqlx::{Connection, Row};

use super::{Embedded, clock::until, take};
use crate::{
    broker::{BrokerError, subject},
    delivery::Delivery,
};

/// How far a message has come with a durable consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not delivered yet.
    Waiting,
    /// Delivered or given back, and not acknowledged; it comes again after this time.
    Pending(Duration),
    Acked,
}

/// A message with what a durable consumer has done about it.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    pub(crate) delivery: Delivery,
    pub(crate) stage: Stage,
    seq: i64,
}

impl Embedded {
    /// Stops the clock of this broker and its clones: only [`advance_clock`](Self::advance_clock) moves it.
    pub(crate) fn stop_clock(&self) {
        self.shared.clock.stop();
    }

    /// Every message of a durable consumer's subject, oldest first. (One before its start counts as acknowledged.)
    pub(crate) async fn trace(&self, group: &str, pattern: &str) -> Result<Vec<Traced>, BrokerError> {
        let db = self.shared.db().await?;
        let now = self.shared.clock.now();
        let mut reading = db.reading().await?;
        let rows = sqlx::query(
            "SELECT m.seq, m.subject, m.published_at, m.headers, m.payload, c.position, p.visible_at, \
             coalesce(p.delivery_count, 0) AS delivery_count \
             FROM consumers c JOIN messages m LEFT JOIN pending p ON p.consumer = c.id AND p.seq = m.seq \
             WHERE c.consumer_group = ? AND c.subject = ? ORDER BY m.seq",
        )
        .bind(group)
        .bind(pattern)
        .fetch_all(&mut *reading)
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
                let delivery = take::delivery(&db.instance, row)?;
                Ok(Traced { delivery, stage, seq })
            });
            traced.collect::<Result<Vec<_>, sqlx::Error>>()
        });
        let mut traced = reading.done("trace the messages of", traced)?;
        traced.retain(|traced| subject::matches(pattern, &traced.delivery.subject));
        Ok(traced)
    }

    /// Delivers a message again at once that was delivered, even if it was acknowledged: as if that had been lost.
    pub(crate) async fn redeliver(&self, group: &str, pattern: &str, traced: &Traced) -> Result<(), BrokerError> {
        let mut writing = self.shared.db().await?.durable().await?;
        let now = self.shared.clock.now();
        let transaction = async {
            let mut tx = writing.begin().await?;
            // The delivery count of an acknowledged message is gone; what follows is a redelivery in any case.
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
        writing.done("deliver again a message of", redelivered)?;
        self.shared.wakes.all();
        Ok(())
    }
}
