//! Keeps the leases of deliveries alive while they wait for a worker and while they are handled.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{broker::DynLease, error_chain::text, telemetry::Instruments};

/// How long a lease is kept alive beyond the handler's timeout: for the commit and the acknowledgement.
const GRACE: Duration = Duration::from_secs(30);

/// The leases of one pipeline's deliveries. Clones share them.
#[derive(Clone)]
pub(crate) struct LeaseKeeper(Arc<Leases>);

struct Leases {
    next_number: AtomicU64,
    entries: Mutex<HashMap<u64, LeaseEntry>>,
    ack_wait: watch::Sender<Duration>,
    instruments: Instruments,
}

struct LeaseEntry {
    lease: DynLease,
    /// When it is no longer kept alive, because the handler hangs. `None` until the handler begins.
    until: Option<Instant>,
    /// When the handler began.
    begun: Option<Instant>,
}

impl LeaseKeeper {
    pub(crate) fn new(instruments: Instruments) -> Self {
        Self(Arc::new(Leases {
            next_number: AtomicU64::new(0),
            entries: Mutex::default(),
            ack_wait: watch::Sender::default(),
            instruments,
        }))
    }

    /// Keeps a lease alive until the guard is dropped.
    pub(crate) fn keep(&self, lease: DynLease) -> LeaseGuard {
        let number = self.0.next_number.fetch_add(1, Ordering::Relaxed);
        let entry = LeaseEntry {
            lease,
            until: None,
            begun: None,
        };
        self.lock().insert(number, entry);
        self.0.instruments.leased();
        LeaseGuard {
            keeper: self.clone(),
            number,
        }
    }

    /// How many deliveries are leased.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The time since the handler began on the delivery that has been handled longest.
    pub(crate) fn longest(&self) -> Option<Duration> {
        let begun = self.lock().values().filter_map(|entry| entry.begun).min();
        begun.map(|begun| begun.elapsed())
    }

    /// Sets how long a lease lasts, which the broker may change while the program runs.
    pub(crate) fn set_ack_wait(&self, ack_wait: Duration) {
        self.0
            .ack_wait
            .send_if_modified(|current| std::mem::replace(current, ack_wait) != ack_wait);
    }

    /// Reports progress on every lease, three times within each ack-wait. Never returns.
    pub(crate) async fn keep_alive(&self) {
        let mut ack_wait = self.0.ack_wait.subscribe();
        loop {
            let period = (*ack_wait.borrow_and_update() / 3).max(Duration::from_millis(10));
            tokio::select! {
                () = sleep(period) => {}
                // By the new time some may be due already. The sender lives as long as this.
                _ = ack_wait.changed() => {}
            }
            // One that hangs must not keep the others from being renewed: that of a dead letter waits for the database, which
            // on SQLite its own handler may hold for minutes.
            let _ = timeout(period, join_all(self.alive().into_iter().map(renew))).await;
        }
    }

    fn alive(&self) -> Vec<DynLease> {
        let now = Instant::now();
        self.lock()
            .values()
            .filter(|entry| entry.until.is_none_or(|until| now < until))
            .map(|entry| entry.lease.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, LeaseEntry>> {
        self.0.entries.lock()
    }
}

async fn renew(lease: DynLease) {
    if let Err(error) = lease.progress().await {
        tracing::debug!(error = %text(&error), "progress on a delivery could not be reported");
    }
}

/// A lease that is kept alive until this is dropped.
pub(crate) struct LeaseGuard {
    keeper: LeaseKeeper,
    number: u64,
}

impl LeaseGuard {
    /// The handler begins: the lease is let go if it hangs past `timeout` and can't be stopped.
    pub(crate) fn handling(&self, timeout: Duration) {
        let until = Instant::now().checked_add(timeout.saturating_add(GRACE));
        if let Some(entry) = self.keeper.lock().get_mut(&self.number) {
            entry.until = until;
            entry.begun = Some(Instant::now());
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.keeper.lock().remove(&self.number);
        self.keeper.0.instruments.released();
    }
}
