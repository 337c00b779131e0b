//! Tells the relays of this process that an outbox has something new, without asking a database.

use std::sync::LazyLock;

use tokio::sync::{Notify, futures::Notified};

static WRITTEN: LazyLock<Notify> = LazyLock::new(Notify::new);

/// A transaction with messages was committed.
pub(crate) fn wake() {
    WRITTEN.notify_waiters();
}

/// Ends at the next [`wake`] after this call.
pub(crate) fn woken() -> Notified<'static> {
    WRITTEN.notified()
}
