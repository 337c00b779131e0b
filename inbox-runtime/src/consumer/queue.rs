//! The messages of a handler that wait for one of its workers: an unbounded channel, since the slots bound it. Closed, it is drained.

use tokio::sync::OwnedSemaphorePermit;

use crate::pipeline::{Job, LeaseGuard, LeaseKeeper};

/// The end of the queue that messages are put in.
pub(super) struct QueueSender(async_channel::Sender<Queued>);

impl QueueSender {
    pub(super) fn push(&self, queued: Queued) {
        // It fails only when the queue is closed, after which nothing is fetched: dropped, a message is redelivered.
        let _ = self.0.try_send(queued);
    }

    /// The workers get what is in the queue, and then nothing.
    pub(super) fn close(&self) {
        self.0.close();
    }
}

/// The end of the queue that workers take messages from.
pub(super) type Queue = async_channel::Receiver<Queued>;

/// A message that waits for a worker, with the guard of its lease and its slot.
pub(super) struct Queued {
    pub(super) job: Job,
    pub(super) lease: LeaseGuard,
    /// `None` for the next message in a partition, of which there is one at most for each message that is handled.
    pub(super) slot: Option<OwnedSemaphorePermit>,
}

impl Queued {
    /// Its lease is kept alive from now on.
    pub(super) fn new(leases: &LeaseKeeper, job: Job, slot: Option<OwnedSemaphorePermit>) -> Self {
        let lease = leases.keep(job.lease.clone());
        Self { job, lease, slot }
    }
}

pub(super) fn queue() -> (QueueSender, Queue) {
    let (sender, queue) = async_channel::unbounded();
    (QueueSender(sender), queue)
}
