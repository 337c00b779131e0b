//! What is known of one outbox: whether it is relayed, what waits, and whether it is full. For health, metrics, and the handlers that
//! publish.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{config::OutboxLimits, telemetry::OutboxInstruments, warnings::Warnings};

/// How many of the subjects that wait are named in health.
const NAMED: usize = 10;

/// What is known of one outbox. Whoever learns something notes it here.
pub(crate) struct OutboxWatch {
    /// The database's name and where it was given.
    database: String,
    limits: OutboxLimits,
    warnings: Warnings,
    instruments: OutboxInstruments,
    known: Mutex<Known>,
    full: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Known {
    /// Why it can't be relayed.
    outage: Option<String>,
    /// The subjects that the broker doesn't take now.
    waiting: BTreeMap<String, String>,
    oldest: Option<Duration>,
    pending: u64,
    parked: u64,
}

impl OutboxWatch {
    pub(crate) fn new(database: String, limits: OutboxLimits, warnings: Warnings) -> Arc<Self> {
        Arc::new(Self {
            instruments: OutboxInstruments::new(&database),
            database,
            limits,
            warnings,
            known: Mutex::default(),
            full: watch::Sender::new(false),
        })
    }

    pub(crate) fn limits(&self) -> OutboxLimits {
        self.limits
    }

    /// A relay has looked at it.
    pub(crate) fn set_relayed(&self, outage: Option<String>, waiting: BTreeMap<String, String>) {
        self.learn(|known| {
            known.outage = outage;
            known.waiting = waiting;
        });
    }

    /// The age of its oldest message; `None` when it is empty.
    pub(crate) fn set_oldest(&self, oldest: Option<Duration>) {
        self.instruments.oldest(oldest.unwrap_or_default());
        self.learn(|known| known.oldest = oldest);
    }

    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.known.lock().oldest
    }

    /// How many messages wait, and how many are parked.
    pub(crate) fn set_counts(&self, pending: u64, parked: u64) {
        self.instruments.pending(pending);
        self.instruments.parked(parked);
        self.learn(|known| {
            known.pending = pending;
            known.parked = parked;
        });
        let full = pending > self.limits.max_pending;
        self.full.send_if_modified(|was| std::mem::replace(was, full) != full);
    }

    /// So many messages were published.
    pub(crate) fn count(&self, published: usize) {
        self.instruments.published(published as u64);
    }

    /// Whether it holds so many messages that nothing more should be written.
    pub(crate) fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Returns when it is not full any more, or after a while.
    pub(crate) async fn wait_for_room(&self, at_most: Duration) {
        let mut full = self.full.subscribe();
        // The sender lives as long as `self`.
        let _ = tokio::time::timeout(at_most, full.wait_for(|full| !full)).await;
    }

    fn learn(&self, learn: impl FnOnce(&mut Known)) {
        let warnings = {
            let mut known = self.known.lock();
            learn(&mut known);
            self.describe(&known)
        };
        self.warnings.set(&format!("outbox of {}", self.database), warnings);
    }

    /// What somebody should look at.
    fn describe(&self, known: &Known) -> Vec<String> {
        let name = format!("the outbox of {}", self.database);
        let mut warnings = Vec::new();
        if let Some(why) = &known.outage {
            warnings.push(format!("{name} can't be relayed now: {why}"));
        }
        for (subject, why) in known.waiting.iter().take(NAMED) {
            warnings.push(format!("{name}: messages for `{}` wait: {why}", subject.escape_debug()));
        }
        if known.waiting.len() > NAMED {
            let others = known.waiting.len() - NAMED;
            warnings.push(format!("{name}: the messages of {others} further subjects wait"));
        }
        if known.oldest.is_some_and(|oldest| oldest > self.limits.max_age) {
            let limit = humantime::format_duration(self.limits.max_age);
            warnings.push(format!(
                "{name} has a message that has waited for longer than {limit}: nobody relays it, or its broker doesn't take it; run a \
                 program whose outbox mode is `both` or `relay`"
            ));
        }
        if known.pending > self.limits.max_pending {
            let limit = self.limits.max_pending;
            warnings.push(format!(
                "{name} has more than {limit} messages that wait; handlers that publish wait until there are fewer"
            ));
        }
        if known.parked > 0 {
            warnings.push(format!(
                "{name} has {} parked message(s), which the broker has refused for good; replay or discard them \
                 (`inbox_runtime::outbox`)",
                known.parked
            ));
        }
        warnings
    }
}
