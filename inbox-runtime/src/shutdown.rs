//! SIGTERM and SIGINT: the first drains, the second stops now.
//!
//! They are listened to on a thread and a runtime of their own: a handler that blocks a thread of the program's runtime also holds
//! the task that this thread was to run next, which no other thread can take over.

use std::{future::Future, io, thread};

use tokio::runtime;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Listens for signals from now on, until both futures are dropped. The first future ends with the first one, the second with the second.
pub(crate) fn signals() -> Result<
    (
        impl Future<Output = ()> + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    ),
    Error,
> {
    let (first, second, over) = (
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    listen(first.clone(), second.clone(), over.clone()).map_err(Error::Signals)?;
    let over = over.drop_guard();
    let second = async move {
        let _over = over;
        second.cancelled().await;
    };
    Ok((first.cancelled_owned(), second))
}

fn listen(first: CancellationToken, second: CancellationToken, over: CancellationToken) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let mut listener = {
        let _entered = runtime.enter();
        Listener::new()?
    };
    let signals = async move {
        let signal = listener.next().await;
        tracing::info!(
            signal,
            "draining: running handlers finish, everything else is given back"
        );
        first.cancel();
        let signal = listener.next().await;
        tracing::warn!(signal, "stopping now: running handlers are rolled back");
        second.cancel();
    };
    thread::Builder::new()
        .name("inbox-signals".to_owned())
        .spawn(move || runtime.block_on(over.run_until_cancelled(signals)))?;
    Ok(())
}

#[cfg(unix)]
struct Listener {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Listener {
    fn new() -> io::Result<Self> {
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
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
