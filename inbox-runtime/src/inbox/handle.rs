//! An inbox that runs in the background.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::{
    consumer::Stop,
    counters::{Counters, Report},
    error::Error,
    health::{Health, HealthHandle},
    outbox_wake,
};

/// An inbox that runs in the background. Dropped, the inbox goes on.
#[derive(Debug)]
pub struct InboxHandle {
    pub(super) stop: Stop,
    pub(super) task: JoinHandle<Result<Report, Error>>,
    pub(super) counters: Arc<Counters>,
    pub(super) health: HealthHandle,
    #[cfg(feature = "http")]
    pub(super) http_addr: Option<std::net::SocketAddr>,
}

impl InboxHandle {
    /// Tells the inbox to stop: running handlers finish, everything else is released at once. Returns at once; wait
    /// with [`join`](Self::join).
    pub fn stop(&self) {
        self.stop.drain.cancel();
    }

    /// Tells the relay that a transaction in which the program has [published](crate::publish) is committed. Without that it is
    /// seen at the next look, within 600 ms. What handlers publish is seen at once.
    pub fn wake_outbox(&self) {
        outbox_wake::wake();
    }

    /// Waits until the inbox has stopped: at most the shutdown timeout and a few seconds after [`stop`](Self::stop), if
    /// a thread of the runtime is free. A handler that blocks its thread is left behind ([`Error::Blocked`]). On a runtime
    /// with one thread that is the one that would notice it, so there the inbox stops when the handler returns.
    ///
    /// # Errors
    ///
    /// As [`Inbox::run`](crate::Inbox::run).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the inbox goes on, and nobody can stop it any more.
    pub async fn join(self) -> Result<Report, Error> {
        self.task.await?
    }

    /// What became of the deliveries so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.counters.report()
    }

    /// Whether it runs, and whether it can work.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.health()
    }

    /// Looks at the health after this handle was moved, too.
    #[must_use]
    pub fn health_handle(&self) -> HealthHandle {
        self.health.clone()
    }

    /// Where the runtime serves health and metrics, if it does.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn http_addr(&self) -> Option<std::net::SocketAddr> {
        self.http_addr
    }
}

impl From<&InboxHandle> for HealthHandle {
    fn from(inbox: &InboxHandle) -> Self {
        inbox.health_handle()
    }
}
