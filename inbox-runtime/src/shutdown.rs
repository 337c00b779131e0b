//! SIGTERM and SIGINT: the first drains, the second stops now.

use std::future::Future;

use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Listens for signals from now on. The first future ends with the first one, the second with the second.
pub(crate) fn signals() -> Result<
    (
        impl Future<Output = ()> + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    ),
    Error,
> {
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let mut listener = Listener::new().map_err(Error::Signals)?;
    let (one, two) = (first.clone(), second.clone());
    tokio::spawn(async move {
        let signal = listener.next().await;
        tracing::info!(
            signal,
            "draining: running handlers finish, everything else is given back"
        );
        one.cancel();
        let signal = listener.next().await;
        tracing::warn!(signal, "stopping now: running handlers are rolled back");
        two.cancel();
    });
    Ok((first.cancelled_owned(), second.cancelled_owned()))
}

#[cfg(unix)]
struct Listener {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Listener {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
struct Listener;

#[cfg(not(unix))]
impl Listener {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
