//! Settles deliveries: ack, nak, progress.

use std::{sync::Arc, time::Duration};

use super::{ack_writer::acknowledge, clock::millis, consumer::Consumer, message::position, shared::EmbeddedShared};
use crate::broker::{BrokerError, Lease};

/// Settles one delivery of the embedded broker.
#[derive(Debug)]
pub struct EmbeddedLease {
    shared: Arc<EmbeddedShared>,
    consumer: Arc<Consumer>,
    seq: i64,
    /// The fence: a later delivery has another count.
    delivery_count: i64,
}

impl EmbeddedLease {
    pub(super) fn new(shared: Arc<EmbeddedShared>, consumer: Arc<Consumer>, seq: i64, delivery_count: i64) -> Self {
        Self {
            shared,
            consumer,
            seq,
            delivery_count,
        }
    }

    /// The next message of an ordered consumer waits for this one.
    fn wake_next(&self) {
        if self.consumer.ordered {
            self.shared.wakeups.wake_consumer(self.consumer.id);
        }
    }

    fn lost(&self, instance: &str) -> BrokerError {
        BrokerError::LeaseLost {
            position: position(instance, self.seq),
        }
    }
}

impl Lease for EmbeddedLease {
    /// Deletes the pending row, whoever has its lease: the work is done.
    async fn ack(&self) -> Result<(), BrokerError> {
        acknowledge(&self.shared, self.consumer.id, self.seq).await?;
        self.wake_next();
        Ok(())
    }

    /// Deletes the pending row only if the lease is still ours: the work is yet to be done, and must not be done twice.
    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        let db = self.shared.db().await?;
        let mut connection = db.durable_writer().await?;
        let deleted = sqlx::query("DELETE FROM pending WHERE consumer = ? AND seq = ? AND delivery_count = ?")
            .bind(self.consumer.id)
            .bind(self.seq)
            .bind(self.delivery_count)
            .execute(&mut *connection)
            .await;
        let deleted = connection.finish("acknowledge a message to", deleted)?;
        if deleted.rows_affected() == 0 {
            return Err(self.lost(&db.instance));
        }
        self.wake_next();
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        let mut connection = self.shared.db().await?.relaxed_writer().await?;
        let now = self.shared.clock.now();
        let updated = sqlx::query(
            "UPDATE pending SET taken_at = ?, visible_at = ? WHERE consumer = ? AND seq = ? AND delivery_count = ?",
        )
        .bind(now)
        .bind(now.saturating_add(millis(delay)))
        .bind(self.consumer.id)
        .bind(self.seq)
        .bind(self.delivery_count)
        .execute(&mut *connection)
        .await;
        let updated = connection.finish("nak a message on", updated)?;
        if updated.rows_affected() > 0 {
            self.shared.wakeups.wake_consumer(self.consumer.id);
        }
        Ok(())
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        if renew(&self.shared, &self.consumer, self.seq, self.delivery_count).await? {
            return Ok(());
        }
        Err(self.lost(&self.shared.db().await?.instance))
    }
}

/// Renews a lease for the consumer's current ack-wait. Returns whether it was still that of delivery `delivery_count`.
pub(super) async fn renew(
    shared: &EmbeddedShared,
    consumer: &Consumer,
    seq: i64,
    delivery_count: i64,
) -> Result<bool, BrokerError> {
    let mut connection = shared.db().await?.relaxed_writer().await?;
    let renewed = sqlx::query(
        "UPDATE pending SET taken_at = ?1, visible_at = ?1 + (SELECT ack_wait FROM consumers WHERE id = ?2) \
         WHERE consumer = ?2 AND seq = ?3 AND delivery_count = ?4",
    )
    .bind(shared.clock.now())
    .bind(consumer.id)
    .bind(seq)
    .bind(delivery_count)
    .execute(&mut *connection)
    .await;
    let renewed = connection.finish("renew a lease of", renewed)?;
    Ok(renewed.rows_affected() > 0)
}

/// Releases a delivery that was leased and never returned by a pull; it isn't counted.
pub(super) async fn release(
    shared: &EmbeddedShared,
    consumer: &Consumer,
    seq: i64,
    delivery_count: i64,
) -> Result<(), BrokerError> {
    let mut connection = shared.db().await?.relaxed_writer().await?;
    let released = sqlx::query(
        "UPDATE pending SET taken_at = ?1, visible_at = ?1, delivery_count = delivery_count - 1 \
         WHERE consumer = ?2 AND seq = ?3 AND delivery_count = ?4",
    )
    .bind(shared.clock.now())
    .bind(consumer.id)
    .bind(seq)
    .bind(delivery_count)
    .execute(&mut *connection)
    .await;
    connection.finish("release a message on", released)?;
    shared.wakeups.wake_consumer(consumer.id);
    Ok(())
}
