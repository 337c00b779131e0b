//! The messages of a handler that wait for one of its workers.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::pipeline::{Job, LeaseGuard, LeaseKeeper};

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

/// The messages that wait for a worker. The semaphore has as many permits as there are messages.
pub(super) struct Queue {
    jobs: Mutex<VecDeque<Queued>>,
    waiting: Semaphore,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            jobs: Mutex::default(),
            waiting: Semaphore::new(0),
        }
    }

    pub(super) fn push(&self, queued: Queued) {
        self.jobs.lock().push_back(queued);
        self.waiting.add_permits(1);
    }

    pub(super) fn try_pop(&self) -> Option<Queued> {
        match self.waiting.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits) => return None,
            Err(TryAcquireError::Closed) => {}
        }
        self.jobs.lock().pop_front()
    }

    /// `None` when the queue is closed and empty.
    pub(super) async fn pop(&self) -> Option<Queued> {
        if let Ok(permit) = self.waiting.acquire().await {
            permit.forget();
        }
        self.jobs.lock().pop_front()
    }

    pub(super) fn close(&self) {
        self.waiting.close();
    }
}
