//! Settling deliveries.

use std::{sync::Arc, time::Duration};

use super::{
    Shared, acks,
    clock::millis,
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

    /// The next message of an ordered durable waits for this one.
    fn settled(&self) {
        if self.durable.ordered {
            self.shared.wakes.consumer(self.durable.id);
        }
    }

    fn passed_on(&self, instance: &str) -> BrokerError {
        BrokerError::LeaseLost {
            position: position(instance, self.seq),
        }
    }
}

impl Lease for EmbeddedLease {
    /// Deletes the pending row, whosever it is by now: the work is done.
    async fn ack(&self) -> Result<(), BrokerError> {
        acks::acknowledge(&self.shared, self.durable.id, self.seq).await?;
        self.settled();
        Ok(())
    }

    /// Deletes the pending row if it is still ours: the work is yet to be done, and must not be done by two.
    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        let db = self.shared.db().await?;
        let mut writing = db.durable().await?;
        let deleted = sqlx::query("DELETE FROM pending WHERE consumer = ? AND seq = ? AND delivery_count = ?")
            .bind(self.durable.id)
            .bind(self.seq)
            .bind(self.count)
            .execute(&mut *writing)
            .await;
        let deleted = writing.done("acknowledge a message to", deleted)?;
        if deleted.rows_affected() == 0 {
            return Err(self.passed_on(&db.instance));
        }
        self.settled();
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        let mut writing = self.shared.db().await?.relaxed().await?;
        let now = self.shared.clock.now();
        let updated = sqlx::query(
            "UPDATE pending SET taken_at = ?, visible_at = ? WHERE consumer = ? AND seq = ? AND delivery_count = ?",
        )
        .bind(now)
        .bind(now.saturating_add(millis(delay)))
        .bind(self.durable.id)
        .bind(self.seq)
        .bind(self.count)
        .execute(&mut *writing)
        .await;
        let updated = writing.done("give a message back to", updated)?;
        if updated.rows_affected() > 0 {
            self.shared.wakes.consumer(self.durable.id);
        }
        Ok(())
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        if renew(&self.shared, &self.durable, self.seq, self.count).await? {
            return Ok(());
        }
        Err(self.passed_on(&self.shared.db().await?.instance))
    }
}

/// Lets a lease begin anew, by the durable's ack-wait of now. Returns whether it still was the one of delivery `count`.
pub(super) async fn renew(shared: &Shared, durable: &Durable, seq: i64, count: i64) -> Result<bool, BrokerError> {
    let mut writing = shared.db().await?.relaxed().await?;
    let renewed = sqlx::query(
        "UPDATE pending SET taken_at = ?1, visible_at = ?1 + (SELECT ack_wait FROM consumers WHERE id = ?2) \
         WHERE consumer = ?2 AND seq = ?3 AND delivery_count = ?4",
    )
    .bind(shared.clock.now())
    .bind(durable.id)
    .bind(seq)
    .bind(count)
    .execute(&mut *writing)
    .await;
    let renewed = writing.done("prolong a lease of", renewed)?;
    Ok(renewed.rows_affected() > 0)
}

/// Gives back a delivery that was leased and never handed over, as if it hadn't been.
pub(super) async fn release(shared: &Shared, durable: &Durable, seq: i64, count: i64) -> Result<(), BrokerError> {
    let mut writing = shared.db().await?.relaxed().await?;
    let released = sqlx::query(
        "UPDATE pending SET taken_at = ?1, visible_at = ?1, delivery_count = delivery_count - 1 \
         WHERE consumer = ?2 AND seq = ?3 AND delivery_count = ?4",
    )
    .bind(shared.clock.now())
    .bind(durable.id)
    .bind(seq)
    .bind(count)
    .execute(&mut *writing)
    .await;
    writing.done("give a message back to", released)?;
    shared.wakes.consumer(durable.id);
    Ok(())
}
