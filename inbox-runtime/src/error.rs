//! Why a program with an inbox could not start, or stopped.

use std::{fmt, time::Duration};

use crate::{
    broker::BrokerError,
    error_chain::text,
    store::{ConnectError, MigrateError, StoreError},
};

/// Why an inbox could not start, or stopped.
///
/// Its `Debug` text, which is what a `main` that returns it prints, is for readers too: the error with everything beneath it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something is wrong with what was registered or configured. Nothing was consumed.
    #[error(transparent)]
    Start(#[from] StartErrors),
    /// A broker can't be used.
    #[error("broker: {0}")]
    Broker(#[from] BrokerError),
    /// A database refuses, and waiting doesn't mend it. One that can't be reached is waited for.
    #[error("{database}: {source}")]
    Connect {
        /// Which database, by its name and its variable.
        database: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// The tables of the inbox are not as they must be.
    #[error("{database}: {source}")]
    Migrate {
        /// Which database, by its name and its variable.
        database: String,
        /// Why.
        #[source]
        source: MigrateError,
    },
    /// A database failed.
    #[error("database: {0}")]
    Store(#[from] StoreError),
    /// The second signal came while handlers were still running. They were rolled back, and their messages are redelivered.
    #[error("stopped by a second signal; handlers that were running are rolled back, and their messages come again")]
    Aborted,
    /// Handlers block their threads beyond the shutdown timeout, and are left behind: nothing can stop them. Nothing of them
    /// will be committed or acknowledged, and their messages are redelivered when their leases run out.
    #[error("{0}")]
    Blocked(BlockedHandlers),
    /// The operating system's signals can't be listened to.
    #[error("signals can't be listened to: {0}")]
    Signals(#[source] std::io::Error),
    /// A task of the runtime came to an end that it must not come to.
    #[error("a task of the inbox died: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

/// Everything that keeps a program from starting, all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartErrors(Vec<String>);

impl StartErrors {
    pub(crate) fn new(problems: Vec<String>) -> Self {
        Self(problems)
    }

    /// Each problem, with the place that can mend it.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for StartErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [problem] => write!(f, "the inbox can't start: {problem}"),
            problems => {
                write!(f, "the inbox can't start, for {} reasons:", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
            }
        }
    }
}

impl std::error::Error for StartErrors {}

/// The handlers that a stop has left behind, because they block their threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedHandlers(Vec<BlockedHandler>);

/// A handler that blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockedHandler {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) message_id: String,
    pub(crate) running: Duration,
}

impl fmt::Display for BlockedHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the inbox stopped without ")?;
        for (index, handler) in self.0.iter().enumerate() {
            let BlockedHandler {
                name,
                group,
                message_id,
                running,
            } = handler;
            let comma = if index == 0 { "" } else { ", " };
            let seconds = running.as_secs_f64();
            write!(
                f,
                "{comma}`{name}` of the group `{group}`, which has been at the message `{message_id}` for {seconds:.1} s"
            )?;
        }
        f.write_str(
            " and blocks its thread: nothing of it will be committed or acknowledged, and the message comes again; let \
             handlers run what blocks in `tokio::task::spawn_blocking`; a runtime that is dropped waits for the thread, \
             so end the process with `std::process::exit`",
        )
    }
}

impl BlockedHandlers {
    pub(crate) const fn new(handlers: Vec<BlockedHandler>) -> Self {
        Self(handlers)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names them in the log.
    pub(crate) fn log(&self) {
        for handler in &self.0 {
            tracing::error!(
                handler = handler.name,
                group = handler.group,
                message_id = handler.message_id,
                "the handler has run for {:.1} s, blocks its thread beyond the shutdown timeout and is left behind: nothing of \
                 it will be committed; let it run what blocks in `tokio::task::spawn_blocking`",
                handler.running.as_secs_f64()
            );
        }
    }
}
