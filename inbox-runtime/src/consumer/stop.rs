//! How a running consumer is stopped.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How long it may take to release a message, or to close a source, when the program stops.
pub(super) const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// How a running consumer is stopped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// Running handlers finish, everything else is released.
    pub(crate) drain: CancellationToken,
    /// Running handlers are rolled back and released.
    pub(crate) now: CancellationToken,
}
