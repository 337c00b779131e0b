//! Settling deliveries.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{config::SETTLE_TIMEOUT, durable::Durable, link::Link};
use crate::broker::{BrokerError, Lease};

/// Settles one delivery of a JetStream durable.
///
/// The server takes whatever is said about a message from anybody, also from those who had it before. So a lease that may
/// have passed on, by our clock or because the durable was made anew, says nothing but that the work is done.
#[derive(Debug)]
pub struct NatsLease {
    link: Arc<Link>,
    durable: Arc<Durable>,
    seq: u64,
    /// Where to say it.
    reply: String,
    /// Since when it is ours, for sure.
    since: Mutex<Instant>,
}

impl NatsLease {
    pub(super) fn new(link: Arc<Link>, durable: Arc<Durable>, seq: u64, reply: String, since: Instant) -> Self {
        Self {
            link,
            durable,
            seq,
            reply,
            since: Mutex::new(since),
        }
    }

    /// How long it has been ours without a sign of life.
    pub(super) fn age(&self) -> Duration {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether somebody else may have the message. The clock of the server began earlier than ours, by the way of a message.
    pub(super) fn may_have_passed_on(&self) -> bool {
        let margin = self.durable.ack_wait / 5;
        self.durable.is_gone() || self.age() + margin >= self.durable.ack_wait
    }

    fn lost(&self) -> BrokerError {
        BrokerError::LeaseLost {
            position: self.durable.position(self.seq),
        }
    }

    async fn acknowledge(&self) -> Result<(), BrokerError> {
        self.durable.acks.ack(&self.link, self.reply.clone()).await?;
        Ok(())
    }

    /// Says it and waits until the server has heard it.
    async fn say(&self, word: String) -> Result<(), BrokerError> {
        self.link
            .ask_within(self.reply.clone(), word.into(), SETTLE_TIMEOUT)
            .await
            .map(|_| ())
            .map_err(BrokerError::from)
    }
}

impl Lease for NatsLease {
    /// Settles the message, whosever it is by now: the work is done. Only when the stream is another one, its number means
    /// another message.
    async fn ack(&self) -> Result<(), BrokerError> {
        if self.durable.is_stream_gone() {
            return Err(self.lost());
        }
        self.acknowledge().await
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        if self.may_have_passed_on() {
            return Err(self.lost());
        }
        self.acknowledge().await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        if self.may_have_passed_on() {
            return Ok(());
        }
        let nanos = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX);
        self.say(match nanos {
            0 => "-NAK".to_owned(),
            nanos => format!(r#"-NAK {{"delay": {nanos}}}"#),
        })
        .await
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        if self.may_have_passed_on() {
            return Err(self.lost());
        }
        let now = Instant::now();
        self.say("+WPI".to_owned()).await?;
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(())
    }
}
