//! Whether a pipeline gets on: when it last did, and what waits for its back-off.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The pace of one pipeline. Clones share it.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Mutex<Inner>>);

struct Inner {
    last: Instant,
    /// When each message that was given back comes again; those whose time has come are left to be swept.
    due: BinaryHeap<Reverse<Instant>>,
    /// Acknowledgements fail, one after the other.
    failing: Option<Failing>,
}

struct Failing {
    first: Instant,
    last: Instant,
    why: String,
}

/// After so long without another one, acknowledgements that failed say nothing of now.
const FORGOTTEN: Duration = Duration::from_secs(300);

impl Failing {
    fn is_recent(&self) -> bool {
        self.last.elapsed() < FORGOTTEN
    }
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            last: Instant::now(),
            due: BinaryHeap::new(),
            failing: None,
        })))
    }

    /// The broker answered, or a message was settled.
    pub(super) fn step(&self) {
        self.lock().last = Instant::now();
    }

    /// A message was given back, to come again after that time.
    pub(super) fn gave_back(&self, delay: Duration) {
        let mut inner = self.lock();
        inner.sweep();
        // Later than the clock can tell is never.
        inner.due.extend(Instant::now().checked_add(delay).map(Reverse));
    }

    /// An acknowledgement came to that end.
    pub(super) fn acked(&self, failure: Option<&str>) {
        let mut inner = self.lock();
        let Some(why) = failure else {
            inner.failing = None;
            return;
        };
        let now = Instant::now();
        let recent = inner.failing.as_ref().filter(|failing| failing.is_recent());
        inner.failing = Some(Failing {
            first: recent.map_or(now, |failing| failing.first),
            last: now,
            why: why.to_owned(),
        });
    }

    /// For how long acknowledgements have failed, each of them, and why the last did.
    pub(crate) fn acks_fail(&self) -> Option<(Duration, String)> {
        let inner = self.lock();
        let failing = inner.failing.as_ref().filter(|failing| failing.is_recent())?;
        Some((failing.last - failing.first, failing.why.clone()))
    }

    /// The time since the last step.
    pub(crate) fn idle(&self) -> Duration {
        self.lock().last.elapsed()
    }

    /// How many messages wait for their back-off, and how long the first of them still does.
    pub(crate) fn backing_off(&self) -> (usize, Option<Duration>) {
        let mut inner = self.lock();
        inner.sweep();
        let first = inner.due.peek().map(|Reverse(at)| *at);
        (inner.due.len(), first.map(|at| at - Instant::now()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn sweep(&mut self) {
        let now = Instant::now();
        while self.due.peek().is_some_and(|Reverse(at)| *at <= now) {
            self.due.pop();
        }
    }
}
