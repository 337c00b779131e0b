//! Dead letters that are to be replayed, as a second source of deliveries.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Job, Pipeline, Replayed};
use crate::{
    broker::{self, BrokerError, Lease},
    delivery::Delivery,
    store::{AttemptKey, DeadLetter, Records, ReplayToken, Store, StoreError},
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
            .lease_replays(self.meta.group, self.meta.name, max, lease)
            .await?;
        let job = |(letter, token)| self.replay(letter, token, lease);
        Ok(letters.into_iter().map(job).collect())
    }

    fn replay(&self, letter: DeadLetter, token: ReplayToken, lease: Duration) -> Job {
        let lease = ReplayLease {
            records: self.records.clone(),
            token,
            position: letter.position.clone(),
            lease,
        };
        let key = AttemptKey {
            group: letter.group,
            handler: letter.handler,
            position: letter.position.clone(),
            message_id: letter.message_id,
            fingerprint: letter.fingerprint,
        };
        let mut delivery = Delivery::new(letter.subject, letter.position);
        delivery.headers = letter.headers;
        delivery.payload = letter.payload;
        delivery.key = letter.message_key;
        delivery.published_at = letter.published_at;
        delivery.redelivered = true;
        let mut job = Job::new(delivery, broker::erased(lease));
        job.replay = Some(Replayed { key, token });
        job
    }
}

/// The lease of a dead letter. Once it has run out and somebody else has taken the letter, nothing that is said here counts.
struct ReplayLease {
    records: Arc<dyn Records>,
    token: ReplayToken,
    position: String,
    lease: Duration,
}

impl ReplayLease {
    /// An error unless the lease was still that of this.
    fn held(&self, held: Result<bool, StoreError>) -> Result<(), BrokerError> {
        if held.map_err(unavailable)? {
            return Ok(());
        }
        Err(BrokerError::LeaseLost {
            position: self.position.clone(),
        })
    }
}

impl Lease for ReplayLease {
    /// A letter that was buried anew meanwhile is no longer marked as to be replayed, and stays.
    async fn ack(&self) -> Result<(), BrokerError> {
        self.records
            .complete_replay(self.token)
            .await
            .map_err(unavailable)
            .map(drop)
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        self.held(self.records.complete_replay(self.token).await)
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        let postponed = self.records.postpone_replay(self.token, false, delay).await;
        postponed.map_err(unavailable).map(drop)
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        self.held(self.records.postpone_replay(self.token, true, self.lease).await)
    }
}

fn unavailable(error: StoreError) -> BrokerError {
    BrokerError::unavailable("a dead letter that was replayed could not be settled", error)
}
