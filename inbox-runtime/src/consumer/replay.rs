//! Dead letters that are to be replayed, as deliveries.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::{self, BrokerError, Lease},
    delivery::Delivery,
    pipeline::{Job, Pipeline, Replay},
    store::{AttemptKey, DeadLetter, Records, ReplayToken, Store, StoreError},
};

/// How long the lease of a replayed dead letter lasts beyond its handler's timeout: on SQLite it can't be renewed while the
/// handler holds the only right to write.
const GRACE: Duration = Duration::from_secs(30);

impl<S: Store> Pipeline<S> {
    /// Takes up to `max` dead letters of this handler that are to be replayed.
    pub(crate) async fn take_replays(&self, max: usize) -> Result<Vec<Job>, StoreError> {
        let lease = self.meta.timeout.saturating_add(GRACE);
        let letters = self
            .records
            .lease_replays(self.meta.group, self.meta.name, max, lease)
            .await?;
        let job = |(letter, token)| self.replay_job(letter, token, lease);
        Ok(letters.into_iter().map(job).collect())
    }

    fn replay_job(&self, letter: DeadLetter, token: ReplayToken, lease: Duration) -> Job {
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
        Job::replay(delivery, broker::erased(lease), Replay { key, token })
    }
}

/// The lease of a dead letter. Once it has expired and another process has taken the letter, its calls have no effect.
struct ReplayLease {
    records: Arc<dyn Records>,
    token: ReplayToken,
    position: String,
    lease: Duration,
}

impl ReplayLease {
    /// An error unless the lease was still this one.
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
    /// A letter that was dead-lettered again meanwhile is no longer marked for replay, and stays.
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
