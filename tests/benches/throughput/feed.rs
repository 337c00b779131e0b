//! A broker in memory that makes messages as fast as they are asked for, so that what is measured is ours and the database's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{Broker, BrokerError, Bytes, Delivery, Lease, Message, Published, Source, Subscription};

/// Makes messages as fast as they are asked for, until it is told to stop. Ids repeat after `distinct`.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Tap>);

pub(crate) struct Tap {
    next: AtomicU64,
    distinct: u64,
    open: AtomicBool,
}

impl Feed {
    pub(crate) fn new(first: u64, distinct: u64) -> Self {
        Self(Arc::new(Tap {
            next: AtomicU64::new(first),
            distinct,
            open: AtomicBool::new(true),
        }))
    }

    pub(crate) fn close(&self) {
        self.0.open.store(false, Ordering::Relaxed);
    }

    fn delivery(&self) -> Delivery {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.distinct;
        let mut delivery = Delivery::new("order.created", number.to_string());
        delivery.headers.append("message_id", format!("evt-{number}"));
        delivery.payload = Some(Bytes::from(format!(r#"{{"order_id":{number},"amount_cents":100}}"#)));
        delivery
    }
}

pub(crate) struct Done;

impl Lease for Done {
    async fn ack(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn nak(&self, _delay: Duration) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        Ok(())
    }
}

impl Source for Feed {
    type Lease = Done;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Done)>, BrokerError> {
        if self.0.open.load(Ordering::Relaxed) {
            return Ok((0..max).map(|_| (self.delivery(), Done)).collect());
        }
        tokio::time::sleep(wait).await;
        Ok(Vec::new())
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_secs(30)
    }
}

impl Broker for Feed {
    type Source = Self;

    async fn describe(&self) -> Result<String, BrokerError> {
        Ok("memory".to_owned())
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self>, BrokerError> {
        Ok(subscriptions.iter().map(|_| self.clone()).collect())
    }

    async fn publish(&self, _message: Message) -> Result<Published, BrokerError> {
        Err(BrokerError::Invalid("nothing is published in the bench".to_owned()))
    }
}
