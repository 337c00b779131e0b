//! Why a program with an inbox could not start, or stopped.

use std::fmt;

use crate::{
    broker::BrokerError,
    inbox::BlockedHandlers,
    pipeline::text,
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
    /// The second signal came while handlers were still running. They were rolled back, and their messages come again.
    #[error("stopped by a second signal; handlers that were running are rolled back, and their messages come again")]
    Aborted,
    /// Handlers block their threads beyond the shutdown timeout, and are left behind: nothing can stop them. Nothing of them
    /// will be committed or acknowledged, and their messages come again when their leases run out.
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
