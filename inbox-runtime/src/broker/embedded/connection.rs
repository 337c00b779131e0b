//! A connection to the broker's database, opened at first use and reopened after a failure.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
};

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::storage::Storage;
use crate::broker::BrokerError;

/// One connection.
#[derive(Debug)]
pub(super) struct DbConnection {
    storage: Storage,
    durable: bool,
    connection: Mutex<Option<SqliteConnection>>,
    /// It must be reopened.
    failed: AtomicBool,
}

impl DbConnection {
    /// A connection that is opened at first use.
    pub(super) fn new(storage: &Storage, durable: bool) -> Self {
        Self {
            storage: storage.clone(),
            durable,
            connection: Mutex::new(None),
            failed: AtomicBool::new(false),
        }
    }

    /// A durable connection that is open.
    pub(super) fn open(storage: &Storage, connection: SqliteConnection) -> Self {
        Self {
            connection: Mutex::new(Some(connection)),
            ..Self::new(storage, true)
        }
    }

    /// Waits until the connection is free. `write_turn` is held as long as the guard.
    pub(super) async fn lock<'a>(
        &'a self,
        write_turn: Option<MutexGuard<'a, ()>>,
    ) -> Result<ConnectionGuard<'a>, BrokerError> {
        let mut slot = self.connection.lock().await;
        if self.failed.swap(false, Ordering::Relaxed) {
            *slot = None;
        }
        if slot.is_none() {
            // Without `create_if_missing`: a file that was deleted under a running program must not silently be replaced.
            let options = self.storage.options(self.durable);
            *slot = Some(
                SqliteConnection::connect_with(&options)
                    .await
                    .map_err(failed("open", &self.storage))?,
            );
        }
        let connection = MutexGuard::try_map(slot, Option::as_mut)
            .map_err(|_| failed("open", &self.storage)(sqlx::Error::WorkerCrashed))?;
        Ok(ConnectionGuard {
            owner: self,
            connection,
            _write_turn: write_turn,
        })
    }
}

/// A locked connection.
#[derive(Debug)]
pub(super) struct ConnectionGuard<'a> {
    owner: &'a DbConnection,
    connection: MappedMutexGuard<'a, SqliteConnection>,
    _write_turn: Option<MutexGuard<'a, ()>>,
}

impl ConnectionGuard<'_> {
    /// Unlocks the connection after `action` ended with `result`. After an error it is reopened: after a full disk, for
    /// one, SQLite has rolled back and sqlx believes itself in a transaction for ever. A database in memory can't be
    /// reopened.
    pub(super) fn finish<T>(self, action: &str, result: Result<T, sqlx::Error>) -> Result<T, BrokerError> {
        if result.is_err() && matches!(self.owner.storage, Storage::File { .. }) {
            self.owner.failed.store(true, Ordering::Relaxed);
        }
        result.map_err(failed(action, &self.owner.storage))
    }
}

impl Deref for ConnectionGuard<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl DerefMut for ConnectionGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}

/// The error of a failed `action`, such as `publish to`; for `map_err`.
pub(super) fn failed<'a>(action: &'a str, storage: &'a Storage) -> impl FnOnce(sqlx::Error) -> BrokerError + 'a {
    move |error| BrokerError::unavailable(format!("could not {action} the embedded broker ({storage})"), error)
}
