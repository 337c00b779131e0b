//! Waking the pulls of this process that wait for a message.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::take::Durable;
use crate::broker::subject;

/// The durables that sources of this process have open.
#[derive(Debug, Default)]
pub(super) struct Wakes(Mutex<Vec<Weak<Durable>>>);

impl Wakes {
    /// Adds a source's durable, until it is dropped.
    pub(super) fn add(&self, durable: &Arc<Durable>) {
        let mut durables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        durables.retain(|other| other.strong_count() > 0);
        durables.push(Arc::downgrade(durable));
    }

    /// The ids of the durables that are open, each once.
    pub(super) fn ids(&self) -> Vec<i64> {
        let mut ids: Vec<_> = self.open().iter().map(|durable| durable.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// A message was published: wakes who takes its subject.
    pub(super) fn published(&self, subject: &str) {
        self.wake(|durable| subject::matches(&durable.subject, subject));
    }

    /// A delivery of that durable may be had: it was given back, or the one before it was settled.
    pub(super) fn consumer(&self, id: i64) {
        self.wake(|durable| durable.id == id);
    }

    /// Anything may have changed.
    pub(super) fn all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, wanted: impl Fn(&Durable) -> bool) {
        for durable in self.open() {
            if wanted(&durable) {
                durable.woken.notify_waiters();
            }
        }
    }

    fn open(&self) -> Vec<Arc<Durable>> {
        let durables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        durables.iter().filter_map(Weak::upgrade).collect()
    }
}
