//! Whether a pipeline makes progress: when it last did, what waits for its back-off, whether acknowledgements fail.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// After so long without an acknowledgement, those that failed say nothing about now.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// The progress of one pipeline. Clones share it.
#[derive(Clone)]
pub(crate) struct ProgressTracker(Arc<Mutex<Progress>>);

struct Progress {
    last: Instant,
    /// When each message that was nakked is due to be redelivered. Those that are past are removed by [`Self::sweep`].
    due: BinaryHeap<Reverse<Instant>>,
    /// Set while acknowledgements fail, one after the other.
    failing_acks: Option<FailingAcks>,
}

struct FailingAcks {
    first: Instant,
    last: Instant,
    /// The last error.
    why: String,
}

impl FailingAcks {
    fn is_recent(&self) -> bool {
        self.last.elapsed() < FORGOTTEN
    }
}

impl ProgressTracker {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Progress {
            last: Instant::now(),
            due: BinaryHeap::new(),
            failing_acks: None,
        })))
    }

    /// The broker answered, or a message was settled.
    pub(crate) fn record_progress(&self) {
        self.lock().last = Instant::now();
    }

    /// A message was nakked, to be redelivered after `delay`.
    pub(super) fn record_backoff(&self, delay: Duration) {
        let mut progress = self.lock();
        progress.sweep();
        // Later than the clock can tell is never.
        progress.due.extend(Instant::now().checked_add(delay).map(Reverse));
    }

    /// An acknowledgement succeeded, or failed with this error.
    pub(super) fn record_ack(&self, failure: Option<&str>) {
        let mut progress = self.lock();
        let Some(why) = failure else {
            progress.failing_acks = None;
            return;
        };
        let now = Instant::now();
        let recent = progress.failing_acks.as_ref().filter(|acks| acks.is_recent());
        progress.failing_acks = Some(FailingAcks {
            first: recent.map_or(now, |acks| acks.first),
            last: now,
            why: why.to_owned(),
        });
    }

    /// For how long every acknowledgement has failed, and the last error.
    pub(crate) fn failing_acks(&self) -> Option<(Duration, String)> {
        let progress = self.lock();
        let acks = progress.failing_acks.as_ref().filter(|acks| acks.is_recent())?;
        Some((acks.last - acks.first, acks.why.clone()))
    }

    /// The time since the broker last answered or a message was settled.
    pub(crate) fn since_progress(&self) -> Duration {
        self.lock().last.elapsed()
    }

    /// How many messages wait for their back-off, and how long the first of them still does.
    pub(crate) fn backing_off(&self) -> (usize, Option<Duration>) {
        let mut progress = self.lock();
        progress.sweep();
        let first = progress.due.peek().map(|Reverse(at)| *at);
        (progress.due.len(), first.map(|at| at - Instant::now()))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock()
    }
}

impl Progress {
    fn sweep(&mut self) {
        let now = Instant::now();
        while self.due.peek().is_some_and(|Reverse(at)| *at <= now) {
            self.due.pop();
        }
    }
}
