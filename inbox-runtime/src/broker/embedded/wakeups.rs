//! Wakes the pulls of this process that wait for a message.

use std::sync::{Arc, Weak, atomic::Ordering};

use parking_lot::Mutex;

use super::consumer::Consumer;
use crate::broker::subject;

/// The consumers that sources of this process read.
#[derive(Debug, Default)]
pub(super) struct Wakeups(Mutex<Vec<Weak<Consumer>>>);

impl Wakeups {
    /// Adds a source's consumer, until that is dropped.
    pub(super) fn add(&self, consumer: &Arc<Consumer>) {
        let mut consumers = self.0.lock();
        consumers.retain(|other| other.strong_count() > 0);
        consumers.push(Arc::downgrade(consumer));
    }

    /// The ids of the consumers, each once.
    pub(super) fn consumer_ids(&self) -> Vec<i64> {
        let mut ids: Vec<_> = self.consumers().iter().map(|consumer| consumer.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Wakes those to which a message of that subject is delivered.
    pub(super) fn wake_subject(&self, subject: &str) {
        self.wake(|consumer| subject::matches(&consumer.subject, subject));
    }

    /// The same after this process has published one: their next fetch will find it.
    pub(super) fn wake_published(&self, subject: &str) {
        self.wake(|consumer| {
            let matches = subject::matches(&consumer.subject, subject);
            consumer.published.fetch_or(matches, Ordering::Relaxed);
            matches
        });
    }

    /// Wakes those of one consumer, after a nak, or an ack on an ordered one.
    pub(super) fn wake_consumer(&self, id: i64) {
        self.wake(|consumer| consumer.id == id);
    }

    pub(super) fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, wanted: impl Fn(&Consumer) -> bool) {
        for consumer in self.consumers() {
            if wanted(&consumer) {
                consumer.woken.notify_waiters();
            }
        }
    }

    fn consumers(&self) -> Vec<Arc<Consumer>> {
        let consumers = self.0.lock();
        consumers.iter().filter_map(Weak::upgrade).collect()
    }
}
