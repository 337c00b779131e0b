//! A connection to the broker's database, which is made when it is needed and replaced when it has failed.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
};

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::config::Place;
use crate::broker::BrokerError;

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Link {
    place: Place,
    durable: bool,
    connection: Mutex<Option<SqliteConnection>>,
    failed: AtomicBool,
}

impl Link {
    /// A connection to open when it is needed.
    pub(super) fn new(place: &Place, durable: bool) -> Self {
        Self {
            place: place.clone(),
            durable,
            connection: Mutex::new(None),
            failed: AtomicBool::new(false),
        }
    }

    /// A durable connection that is open.
    pub(super) fn open(place: &Place, connection: SqliteConnection) -> Self {
        Self {
            connection: Mutex::new(Some(connection)),
            ..Self::new(place, true)
        }
    }

    /// Waits until the connection is free; `gate` is kept as long as it is held.
    pub(super) async fn hold<'a>(&'a self, gate: Option<MutexGuard<'a, ()>>) -> Result<Held<'a>, BrokerError> {
        let mut slot = self.connection.lock().await;
        if self.failed.swap(false, Ordering::Relaxed) {
            *slot = None;
        }
        if slot.is_none() {
            // Not made if it is missing: what has vanished under a running program must not begin anew silently.
            let options = self.place.options(self.durable);
            *slot = Some(
                SqliteConnection::connect_with(&options)
                    .await
                    .map_err(failed("open", &self.place))?,
            );
        }
        let connection = MutexGuard::try_map(slot, Option::as_mut)
            .map_err(|_| failed("open", &self.place)(sqlx::Error::WorkerCrashed))?;
        Ok(Held {
            link: self,
            connection,
            _gate: gate,
        })
    }
}

/// A connection that nobody else uses.
#[derive(Debug)]
pub(super) struct Held<'a> {
    link: &'a Link,
    connection: MappedMutexGuard<'a, SqliteConnection>,
    _gate: Option<MutexGuard<'a, ()>>,
}

impl Held<'_> {
    /// Frees the connection after `result` of doing `what`, and replaces it if that failed: after a full disk, for one,
    /// SQLite has rolled back and sqlx believes itself in a transaction for ever. A database in memory can't be replaced.
    pub(super) fn done<T>(self, what: &str, result: Result<T, sqlx::Error>) -> Result<T, BrokerError> {
        if result.is_err() && matches!(self.link.place, Place::File { .. }) {
            self.link.failed.store(true, Ordering::Relaxed);
        }
        result.map_err(failed(what, &self.link.place))
    }
}

impl Deref for Held<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}

/// What to say when doing `what` failed, for `map_err`.
pub(super) fn failed<'a>(what: &'a str, place: &'a Place) -> impl FnOnce(sqlx::Error) -> BrokerError + 'a {
    move |error| BrokerError::unavailable(format!("could not {what} the embedded broker ({place})"), error)
}
