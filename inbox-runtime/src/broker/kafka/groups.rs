//! The running groups of a `Kafka` and its clones.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::group::Group;

/// The groups that are running.
#[derive(Debug, Default)]
pub(super) struct Groups {
    list: Mutex<Vec<Weak<Group>>>,
    /// Set when the thread that polls their metadata is started.
    pub(super) metadata_poll: OnceLock<()>,
}

impl Groups {
    pub(super) fn add(&self, group: &Arc<Group>) {
        let mut list = self.list.lock();
        list.retain(|group| group.strong_count() > 0);
        list.push(Arc::downgrade(group));
    }

    pub(super) fn running(&self) -> Vec<Arc<Group>> {
        let list = self.list.lock();
        list.iter().filter_map(Weak::upgrade).collect()
    }
}
