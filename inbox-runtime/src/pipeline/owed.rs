//! Remembers which attempts could not be taken back.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::store::AttemptKey;

/// The attempts that are on record and were none, because the database was down when they were to be taken back. The
/// next delivery of such a message takes the one that is on record for its own.
#[derive(Default)]
pub(crate) struct Owed(Mutex<HashMap<AttemptKey, u32>>);

impl Owed {
    pub(super) fn add(&self, key: AttemptKey, attempts: u32) {
        self.lock().insert(key, attempts);
    }

    pub(super) fn take(&self, key: &AttemptKey) -> Option<u32> {
        self.lock().remove(key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttemptKey, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
