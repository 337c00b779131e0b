//! What somebody should look at though it keeps no message from being handled: `Health::warnings`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;

/// The warnings of an inbox, of which each source replaces its own. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Warnings {
    /// Replaces the warnings of a source.
    pub(crate) fn set(&self, source: &str, warnings: Vec<String>) {
        let mut all = self.0.lock();
        if warnings.is_empty() {
            all.remove(source);
        } else {
            all.insert(source.to_owned(), warnings);
        }
    }

    /// The warnings of all sources, each once.
    pub(crate) fn all(&self) -> Vec<String> {
        let all = self.0.lock();
        let each: BTreeSet<_> = all.values().flatten().cloned().collect();
        each.into_iter().collect()
    }
}
