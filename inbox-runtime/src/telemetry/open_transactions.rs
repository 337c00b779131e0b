//! Tracks the open handler transactions, for the age of the oldest: a long one holds back a database's vacuum.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The open transactions of one pipeline. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenTransactions(Arc<Mutex<BegunTransactions>>);

#[derive(Debug, Default)]
struct BegunTransactions {
    next: u64,
    /// In the order in which they began.
    at: BTreeMap<u64, Instant>,
}

impl OpenTransactions {
    /// Adds a transaction, which is open until the guard is dropped.
    pub(crate) fn begin(&self) -> TransactionGuard {
        let mut begun = self.lock();
        let number = begun.next;
        begun.next += 1;
        begun.at.insert(number, Instant::now());
        drop(begun);
        TransactionGuard {
            open: self.clone(),
            number,
        }
    }

    /// The age of the oldest.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let oldest = self.lock().at.first_key_value().map(|(_, at)| *at);
        oldest.map(|at| at.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, BegunTransactions> {
        self.0.lock()
    }
}

/// A transaction that is open until this is dropped.
pub(crate) struct TransactionGuard {
    open: OpenTransactions,
    number: u64,
}

impl Drop for TransactionGuard {
    fn drop(&mut self) {
        self.open.lock().at.remove(&self.number);
    }
}
