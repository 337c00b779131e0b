//! What the clones, sources and leases of an embedded broker share.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OnceCell},
    task::JoinHandle,
};

use super::{
    ack_queue::AckQueue, clock::BrokerClock, db::Db, retention::Retention, storage::Storage, wakeups::Wakeups,
};
use crate::broker::BrokerError;

#[derive(Debug)]
pub(super) struct EmbeddedShared {
    pub(super) storage: Storage,
    pub(super) clock: BrokerClock,
    pub(super) retention: Retention,
    /// Wakes the waiting pulls of this process.
    pub(super) wakeups: Wakeups,
    /// The acks of this process that wait to be written.
    pub(super) acks: AckQueue,
    pub(super) background: BackgroundTasks,
    db: OnceCell<Db>,
}

/// The background tasks, aborted on drop.
#[derive(Debug, Default)]
pub(super) struct BackgroundTasks {
    pub(super) tasks: Mutex<Vec<JoinHandle<()>>>,
    /// The retention or the clock was changed.
    pub(super) retention_changed: Arc<Notify>,
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut();
        tasks.iter().for_each(JoinHandle::abort);
    }
}

impl EmbeddedShared {
    pub(super) fn new(storage: Storage) -> Self {
        Self {
            storage,
            clock: BrokerClock::default(),
            retention: Retention::default(),
            wakeups: Wakeups::default(),
            acks: AckQueue::default(),
            background: BackgroundTasks::default(),
            db: OnceCell::new(),
        }
    }

    /// The database, opened at first use.
    pub(super) async fn db(&self) -> Result<&Db, BrokerError> {
        self.db.get_or_try_init(|| Db::open(&self.storage)).await
    }
}
