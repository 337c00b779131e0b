//! Settles deliveries: ack, nak, progress.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{durable::Durable, jetstream::JetStream, limits::SETTLE_TIMEOUT};
use crate::broker::{BrokerError, Lease};

/// Settles one delivery of a JetStream consumer.
///
/// The server accepts an ack, nak or progress for a message from anybody, earlier consumers included. So a lease that
/// may be lost, by our clock or because the consumer was recreated, sends nothing but acks.
#[derive(Debug)]
pub struct NatsLease {
    jetstream: Arc<JetStream>,
    durable: Arc<Durable>,
    stream_seq: u64,
    /// The reply subject of the delivery.
    ack_subject: String,
    /// The latest time at which the lease is known to have begun.
    renewed_at: Mutex<Instant>,
}

impl NatsLease {
    pub(super) fn new(
        jetstream: Arc<JetStream>,
        durable: Arc<Durable>,
        stream_seq: u64,
        ack_subject: String,
        received_at: Instant,
    ) -> Self {
        Self {
            jetstream,
            durable,
            stream_seq,
            ack_subject,
            renewed_at: Mutex::new(received_at),
        }
    }

    /// The time since the delivery or the last progress.
    pub(super) fn age(&self) -> Duration {
        self.renewed_at.lock().elapsed()
    }

    /// Whether the message may have been redelivered. The server's clock started earlier than ours, by the network delay.
    fn may_be_lost(&self) -> bool {
        let margin = self.durable.ack_wait / 5;
        self.durable.is_replaced() || self.age() + margin >= self.durable.ack_wait
    }

    fn lost(&self) -> BrokerError {
        BrokerError::LeaseLost {
            position: self.durable.position(self.stream_seq),
        }
    }

    async fn send_ack(&self) -> Result<(), BrokerError> {
        self.durable.acks.ack(&self.jetstream, self.ack_subject.clone()).await?;
        Ok(())
    }

    /// Sends a nak or progress and waits until the server has confirmed it.
    async fn send(&self, body: String) -> Result<(), BrokerError> {
        self.jetstream
            .request(self.ack_subject.clone(), body.into(), SETTLE_TIMEOUT)
            .await
            .map(|_| ())
            .map_err(BrokerError::from)
    }
}

impl Lease for NatsLease {
    /// Acknowledges the message, whoever has its lease: the work is done. Not when the stream was recreated: the same
    /// sequence number is another message there.
    async fn ack(&self) -> Result<(), BrokerError> {
        if self.durable.is_stream_replaced() {
            return Err(self.lost());
        }
        self.send_ack().await
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        if self.may_be_lost() {
            return Err(self.lost());
        }
        self.send_ack().await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        if self.may_be_lost() {
            return Ok(());
        }
        let nanos = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX);
        self.send(match nanos {
            0 => "-NAK".to_owned(),
            nanos => format!(r#"-NAK {{"delay": {nanos}}}"#),
        })
        .await
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        if self.may_be_lost() {
            return Err(self.lost());
        }
        let now = Instant::now();
        self.send("+WPI".to_owned()).await?;
        *self.renewed_at.lock() = now;
        Ok(())
    }
}
