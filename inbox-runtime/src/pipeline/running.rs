//! The messages that a pipeline is handling, so that a handler that blocks its thread can be reported.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The messages that one pipeline is handling. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Mutex<RunningMessages>>);

#[derive(Debug, Default)]
struct RunningMessages {
    next: u64,
    /// Their ids and since when, in the order in which they began.
    begun: BTreeMap<u64, (String, Instant)>,
}

impl Running {
    /// Adds a message, which is being handled until the guard is dropped.
    pub(super) fn begin(&self, id: &str) -> RunningGuard {
        let mut messages = self.lock();
        let number = messages.next;
        messages.next += 1;
        messages.begun.insert(number, (id.to_owned(), Instant::now()));
        drop(messages);
        RunningGuard {
            running: self.clone(),
            number,
        }
    }

    /// The ids of the messages and for how long each has been handled, oldest first.
    pub(crate) fn list(&self) -> Vec<(String, Duration)> {
        let messages = self.lock();
        let begun = messages.begun.values();
        begun.map(|(id, since)| (id.clone(), since.elapsed())).collect()
    }

    /// For how long the oldest has been handled.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let oldest = self.lock().begun.first_key_value().map(|(_, (_, since))| *since);
        oldest.map(|since| since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, RunningMessages> {
        self.0.lock()
    }
}

/// A message that is being handled.
pub(super) struct RunningGuard {
    running: Running,
    number: u64,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.lock().begun.remove(&self.number);
    }
}
