//! Whether a pipeline can work, and why not: what keeps it from pulling and makes its handler not ready.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::{backoff::Backoff, excerpt::excerpt};

/// The wait between two tries while the database or the broker is unavailable.
pub(crate) const OUTAGE_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// What one pipeline needs and can't use now, if anything. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Availability(Arc<Causes>);

#[derive(Debug)]
struct Causes {
    /// Why no message can be handled; nothing is pulled meanwhile.
    database: watch::Sender<Option<String>>,
    /// The table, column or right that the handler lacks. Messages are still tried, since some may not need it.
    lacking: Mutex<Option<String>>,
    /// Why nothing can be pulled.
    broker: Mutex<Option<String>>,
}

impl Availability {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Causes {
            database: watch::Sender::new(None),
            lacking: Mutex::new(None),
            broker: Mutex::new(None),
        }))
    }

    /// A message could not be handled, for a reason that holds for the next one too.
    pub(super) fn mark_unavailable(&self, why: &str) {
        self.0.database.send_if_modified(|cause| {
            let is_new = cause.is_none();
            if is_new {
                tracing::error!(error = why, "messages can't be handled now; waiting until they can");
            }
            *cause = Some(excerpt(why.to_owned()));
            is_new
        });
    }

    /// The handler needs a table, a column or a right that isn't there.
    pub(super) fn mark_lacking(&self, what: &str) {
        if lock(&self.0.lacking).replace(what.to_owned()).is_none() {
            tracing::error!(error = what, "the handler lacks what it needs; waiting for it");
        }
    }

    /// A message was handled.
    pub(crate) fn mark_available(&self) {
        if lock(&self.0.lacking).take().is_some() {
            tracing::info!("the handler has what it needs again");
        }
        self.0.database.send_if_modified(|cause| {
            let was_unavailable = cause.take().is_some();
            if was_unavailable {
                tracing::info!("messages are handled again");
            }
            was_unavailable
        });
    }

    /// Returns when messages can be handled.
    pub(crate) async fn wait_available(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.database.subscribe().wait_for(Option::is_none).await;
    }

    /// Sets why the broker is unavailable; `None` if it answers. Returns whether that it answers has changed.
    pub(crate) fn set_broker(&self, cause: Option<String>) -> bool {
        let mut current = lock(&self.0.broker);
        let changed = current.is_some() != cause.is_some();
        *current = cause;
        changed
    }

    /// Why the database is unavailable, or what the handler lacks there; `None` if neither.
    pub(crate) fn database(&self) -> Option<String> {
        let database = self.0.database.borrow().clone();
        database.or_else(|| lock(&self.0.lacking).clone())
    }

    /// Why the broker is unavailable; `None` if it answers.
    pub(crate) fn broker(&self) -> Option<String> {
        lock(&self.0.broker).clone()
    }
}

fn lock(cause: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    cause.lock()
}
