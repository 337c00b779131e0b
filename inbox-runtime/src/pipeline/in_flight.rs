//! The deliveries that are out, whose leases are kept alive while they wait and while they are handled.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{broker::DynLease, error_chain::text, telemetry::Instruments};

/// How long a lease is kept beyond the handler's timeout: for what comes after the handler.
const GRACE: Duration = Duration::from_secs(30);

/// The deliveries that are out. Clones share them.
#[derive(Clone)]
pub(crate) struct InFlight(Arc<Inner>);

struct Inner {
    next: AtomicU64,
    leases: Mutex<HashMap<u64, Held>>,
    ack_wait: watch::Sender<Duration>,
    instruments: Instruments,
}

struct Held {
    lease: DynLease,
    /// When nobody believes any more that the handler comes back.
    until: Option<Instant>,
    /// When the handler began.
    begun: Option<Instant>,
}

impl InFlight {
    pub(crate) fn new(instruments: Instruments) -> Self {
        Self(Arc::new(Inner {
            next: AtomicU64::new(0),
            leases: Mutex::default(),
            ack_wait: watch::Sender::default(),
            instruments,
        }))
    }

    /// Keeps a lease alive until the result is dropped.
    pub(crate) fn hold(&self, lease: DynLease) -> Hold {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(
            number,
            Held {
                lease,
                until: None,
                begun: None,
            },
        );
        self.0.instruments.leased();
        Hold {
            in_flight: self.clone(),
            number,
        }
    }

    /// How many are out.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// How long the oldest of those has been handled and settled whose handler has begun.
    pub(crate) fn longest(&self) -> Option<Duration> {
        let begun = self.lock().values().filter_map(|held| held.begun).min();
        begun.map(|begun| begun.elapsed())
    }

    /// Says how long a lease lasts, which somebody may change while the program runs.
    pub(crate) fn pace(&self, ack_wait: Duration) {
        self.0
            .ack_wait
            .send_if_modified(|current| std::mem::replace(current, ack_wait) != ack_wait);
    }

    /// Reports progress on every lease that is held, three times within each ack-wait. Never returns.
    pub(crate) async fn keep_alive(&self) {
        let mut ack_wait = self.0.ack_wait.subscribe();
        loop {
            let period = (*ack_wait.borrow_and_update() / 3).max(Duration::from_millis(10));
            tokio::select! {
                () = sleep(period) => {}
                // By the new time some may be due already. The sender lives as long as this.
                _ = ack_wait.changed() => {}
            }
            // One that hangs must not keep the others from their turn: that of a dead letter waits for the database, which
            // on SQLite its own handler may have for minutes.
            let _ = timeout(period, join_all(self.alive().into_iter().map(renew))).await;
        }
    }

    fn alive(&self) -> Vec<DynLease> {
        let now = Instant::now();
        self.lock()
            .values()
            .filter(|held| held.until.is_none_or(|until| now < until))
            .map(|held| held.lease.clone())
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Held>> {
        self.0.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn renew(lease: DynLease) {
    if let Err(error) = lease.progress().await {
        tracing::debug!(error = %text(&error), "progress on a delivery could not be reported");
    }
}

/// A lease that is kept alive until this is dropped.
pub(crate) struct Hold {
    in_flight: InFlight,
    number: u64,
}

impl Hold {
    /// The handler begins: if it hangs past its timeout in a way that can't be stopped, the lease is let go.
    pub(crate) fn handling(&self, timeout: Duration) {
        let until = Instant::now().checked_add(timeout.saturating_add(GRACE));
        if let Some(held) = self.in_flight.lock().get_mut(&self.number) {
            held.until = until;
            held.begun = Some(Instant::now());
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.in_flight.lock().remove(&self.number);
        self.in_flight.0.instruments.released();
    }
}
