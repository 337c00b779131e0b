//! Dead letters that are to be replayed, as a second source of deliveries.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Job, Pipeline};
use crate::{
    broker::{self, BrokerError, Lease},
    delivery::Delivery,
    store::{DeadLetter, Records, Store, StoreError},
};

/// How long a dead letter that is being replayed is nobody else's, beyond its handler's timeout: on SQLite its lease can't
/// be prolonged while the handler has the one right to write.
const GRACE: Duration = Duration::from_secs(30);

/// Tells the pipelines of this process at once that there is something to replay; others find it when they next look.
pub(crate) static REQUESTED: LazyLock<Notify> = LazyLock::new(Notify::new);

impl<S: Store> Pipeline<S> {
    /// Takes up to `max` dead letters of this handler that are to be replayed.
    pub(crate) async fn take_replays(&self, max: usize) -> Result<Vec<Job>, StoreError> {
        let lease = self.meta.timeout.saturating_add(GRACE);
        let letters = self
            .records
            .take_replays(self.meta.group, self.meta.name, max, lease)
            .await?;
        Ok(letters.into_iter().map(|letter| self.replay(letter, lease)).collect())
    }

    fn replay(&self, letter: DeadLetter, lease: Duration) -> Job {
        let lease = ReplayLease {
            records: self.records.clone(),
            id: letter.id,
            lease,
        };
        let mut delivery = Delivery::new(letter.subject, letter.position);
        delivery.headers = letter.headers;
        delivery.payload = letter.payload;
        delivery.key = letter.message_key;
        delivery.published_at = letter.published_at;
        delivery.redelivered = true;
        let mut job = Job::new(delivery, broker::erased(lease));
        job.replayed = true;
        job
    }
}

/// The lease of a dead letter.
struct ReplayLease {
    records: Arc<dyn Records>,
    id: i64,
    lease: Duration,
}

impl Lease for ReplayLease {
    /// A letter that was buried anew meanwhile is no longer marked as to be replayed, and stays.
    async fn ack(&self) -> Result<(), BrokerError> {
        self.records.replayed(self.id).await.map_err(unavailable)
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        self.ack().await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.records.postpone_replay(self.id, delay).await.map_err(unavailable)
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        self.records
            .postpone_replay(self.id, self.lease)
            .await
            .map_err(unavailable)
    }
}

fn unavailable(error: StoreError) -> BrokerError {
    BrokerError::unavailable("a dead letter that was replayed could not be settled", error)
}
