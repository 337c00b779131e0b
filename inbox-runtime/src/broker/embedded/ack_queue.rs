//! The acks of one process that wait to be written.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::broker::BrokerError;

#[derive(Debug, Default)]
pub(super) struct AckQueue(Mutex<AckQueueState>);

#[derive(Debug, Default)]
struct AckQueueState {
    acks: Vec<QueuedAck>,
    /// Whether a task writes them.
    writing: bool,
}

#[derive(Debug)]
pub(super) struct QueuedAck {
    pub(super) consumer: i64,
    pub(super) seq: i64,
    pub(super) done: oneshot::Sender<Result<(), Arc<BrokerError>>>,
}

impl AckQueue {
    /// Returns whether a task must be started that writes it.
    pub(super) fn push(&self, ack: QueuedAck) -> bool {
        let mut state = self.lock();
        state.acks.push(ack);
        !std::mem::replace(&mut state.writing, true)
    }

    pub(super) fn take(&self) -> Vec<QueuedAck> {
        std::mem::take(&mut self.lock().acks)
    }

    /// Whether it is empty; the writing task must end then.
    pub(super) fn is_written(&self) -> bool {
        let mut state = self.lock();
        state.writing = !state.acks.is_empty();
        !state.writing
    }

    /// The writing task was aborted: those who wait for its acks are told, and the next ack starts another task.
    pub(super) fn reset(&self) {
        *self.lock() = AckQueueState::default();
    }

    fn lock(&self) -> MutexGuard<'_, AckQueueState> {
        self.0.lock()
    }
}
