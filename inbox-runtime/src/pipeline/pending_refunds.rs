//! Attempts that are on record, were never made, and could not be taken off the record.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};

use crate::store::AttemptKey;

/// The attempts whose refund failed because the database was down. The next delivery of such a message takes the counted
/// attempt for its own.
#[derive(Default)]
pub(crate) struct PendingRefunds(Mutex<HashMap<AttemptKey, u32>>);

impl PendingRefunds {
    /// `attempts` is the count with the one to be refunded.
    pub(super) fn add(&self, key: AttemptKey, attempts: u32) {
        self.lock().insert(key, attempts);
    }

    pub(super) fn take(&self, key: &AttemptKey) -> Option<u32> {
        self.lock().remove(key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttemptKey, u32>> {
        self.0.lock()
    }
}
