//! Settling deliveries.

use std::{sync::Arc, time::Duration};

use sqlx::SqlitePool;

use super::{
    Shared,
    clock::millis,
    db::failed,
    take::{Durable, position},
};
use crate::broker::{BrokerError, Lease};

/// Settles one delivery of the embedded broker.
#[derive(Debug)]
pub struct EmbeddedLease {
    shared: Arc<Shared>,
    durable: Arc<Durable>,
    seq: i64,
    /// The delivery count is the fence: it tells whose lease it is.
    count: i64,
}

impl EmbeddedLease {
    pub(super) fn new(shared: Arc<Shared>, durable: Arc<Durable>, seq: i64, count: i64) -> Self {
        Self {
            shared,
            durable,
            seq,
            count,
        }
    }

    /// Deletes the pending row, whosever it is by now: the work is done. Returns whether it was there.
    async fn settle(&self, pool: &SqlitePool) -> Result<bool, BrokerError> {
        let deleted = sqlx::query("DELETE FROM pending WHERE consumer = ? AND seq = ?")
            .bind(self.durable.id)
            .bind(self.seq)
            .execute(pool)
            .await
            .map_err(failed("acknowledge a message to", &self.shared.place))?;
        Ok(deleted.rows_affected() > 0)
    }
}

impl Lease for EmbeddedLease {
    async fn ack(&self) -> Result<(), BrokerError> {
        let db = self.shared.db().await?;
        let _writing = db.gate.lock().await;
        // Not synced: an ack that a power failure undoes means a redelivery, as an ack that is lost on a network does.
        self.settle(&db.relaxed).await?;
        Ok(())
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        let db = self.shared.db().await?;
        let _writing = db.gate.lock().await;
        if !self.settle(&db.durable).await? {
            // An earlier ack deleted the row and may not be on the disk yet: any synced write takes it along.
            sqlx::query("UPDATE consumers SET acked = acked WHERE id = ?")
                .bind(self.durable.id)
                .execute(&db.durable)
                .await
                .map_err(failed("acknowledge a message to", &self.shared.place))?;
        }
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        let db = self.shared.db().await?;
        let writing = db.gate.lock().await;
        let now = self.shared.clock.now();
        let updated = sqlx::query(
            "UPDATE pending SET taken_at = ?, visible_at = ? WHERE consumer = ? AND seq = ? AND delivery_count = ?",
        )
        .bind(now)
        .bind(now.saturating_add(millis(delay)))
        .bind(self.durable.id)
        .bind(self.seq)
        .bind(self.count)
        .execute(&db.relaxed)
        .await
        .map_err(failed("give a message back to", &self.shared.place))?;
        drop(writing);
        if updated.rows_affected() > 0 {
            self.shared.wake.notify_waiters();
        }
        Ok(())
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        if renew(&self.shared, &self.durable, self.seq, self.count).await? {
            return Ok(());
        }
        let position = position(&self.shared.db().await?.instance, self.seq);
        Err(BrokerError::Invalid(format!(
            "the lease of {position} has passed on: the message is settled, or was delivered to group \"{}\" again",
            self.durable.group
        )))
    }
}

/// Lets a lease begin anew, by the durable's ack-wait of now. Returns whether it still was the one of delivery `count`.
pub(super) async fn renew(shared: &Shared, durable: &Durable, seq: i64, count: i64) -> Result<bool, BrokerError> {
    let db = shared.db().await?;
    let _writing = db.gate.lock().await;
    let renewed = sqlx::query(
        "UPDATE pending SET taken_at = ?1, visible_at = ?1 + (SELECT ack_wait FROM consumers WHERE id = ?2) \
         WHERE consumer = ?2 AND seq = ?3 AND delivery_count = ?4",
    )
    .bind(shared.clock.now())
    .bind(durable.id)
    .bind(seq)
    .bind(count)
    .execute(&db.relaxed)
    .await
    .map_err(failed("prolong a lease of", &shared.place))?;
    Ok(renewed.rows_affected() > 0)
}

/// Gives back a delivery that was leased and never handed over, as if it hadn't been.
pub(super) async fn release(shared: &Shared, durable: &Durable, seq: i64, count: i64) -> Result<(), BrokerError> {
    let db = shared.db().await?;
    let writing = db.gate.lock().await;
    sqlx::query(
        "UPDATE pending SET taken_at = ?1, visible_at = ?1, delivery_count = delivery_count - 1 \
         WHERE consumer = ?2 AND seq = ?3 AND delivery_count = ?4",
    )
    .bind(shared.clock.now())
    .bind(durable.id)
    .bind(seq)
    .bind(count)
    .execute(&db.relaxed)
    .await
    .map_err(failed("give a message back to", &shared.place))?;
    drop(writing);
    shared.wake.notify_waiters();
    Ok(())
}
