//! Whether a pipeline can work, and why not: what stops it from pulling and makes it report not ready.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::{backoff::Backoff, excerpt::excerpt};

/// The wait between two tries while the database or the broker can't be used.
pub(super) const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// The trouble of one pipeline, if there is any. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Trouble(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Why the database can't be used; nothing is pulled meanwhile.
    database: watch::Sender<Option<String>>,
    /// What the handler needs and isn't there; messages are tried, since some may not need it.
    lacking: Mutex<Option<String>>,
    broker: Mutex<Option<String>>,
}

impl Trouble {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            database: watch::Sender::new(None),
            lacking: Mutex::new(None),
            broker: Mutex::new(None),
        }))
    }

    /// A message could not be handled for a reason that will hold for the next one too.
    pub(super) fn enter(&self, why: &str) {
        self.0.database.send_if_modified(|trouble| {
            let new = trouble.is_none();
            if new {
                tracing::error!(error = why, "messages can't be handled now; waiting for that to pass");
            }
            *trouble = Some(excerpt(why.to_owned()));
            new
        });
    }

    /// A message needs what isn't there.
    pub(super) fn lacks(&self, what: &str) {
        let mut lacking = self.0.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if lacking.replace(what.to_owned()).is_none() {
            tracing::error!(error = what, "the handler lacks what it needs; waiting for that");
        }
    }

    /// A message was handled.
    pub(super) fn leave(&self) {
        let lacked = self.0.lacking.lock().unwrap_or_else(PoisonError::into_inner).take();
        if lacked.is_some() {
            tracing::info!("the handler has what it needs again");
        }
        self.0.database.send_if_modified(|trouble| {
            let old = trouble.take().is_some();
            if old {
                tracing::info!("messages are handled again");
            }
            old
        });
    }

    /// Returns when there is none.
    pub(super) async fn passed(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.database.subscribe().wait_for(Option::is_none).await;
    }

    /// Notes whether the broker could be asked. Returns whether that has changed.
    pub(super) fn broker(&self, trouble: Option<String>) -> bool {
        let mut current = self.0.broker.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = current.is_some() != trouble.is_some();
        *current = trouble;
        changed
    }

    /// What is wrong now with the database, and with the broker.
    pub(crate) fn both(&self) -> (Option<String>, Option<String>) {
        let lacking = || self.0.lacking.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let database = self.0.database.borrow().clone().or_else(lacking);
        let broker = self.0.broker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (database, broker)
    }
}
