//! Where an embedded broker keeps its messages, and the options of a connection to it.

use std::{
    fmt,
    path::{Path, PathBuf, absolute},
    time::SystemTime,
};

use sqlx::{
    ConnectOptions,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};

use super::limits::BUSY_TIMEOUT;

/// The size in bytes to which a checkpoint truncates the write-ahead log.
const LOG_SIZE: &str = "4194304";

/// Where the messages are kept.
#[derive(Clone, Debug)]
pub(super) enum Storage {
    Memory,
    File {
        /// As configured, for logs and errors.
        shown: PathBuf,
        /// Absolute: the working directory may change before a connection is opened.
        path: PathBuf,
    },
}

impl Storage {
    pub(super) fn file(path: &Path) -> Self {
        Self::File {
            shown: path.to_owned(),
            // Fails for an empty path or a deleted working directory; opening then reports why.
            path: absolute(path).unwrap_or_else(|_| path.to_owned()),
        }
    }

    /// The path of the file; `None` in memory.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory => None,
            Self::File { path, .. } => Some(path),
        }
    }

    /// When the write-ahead log was last written; `None` if there is none.
    pub(super) fn log_written(&self) -> Option<SystemTime> {
        let mut log = self.path()?.as_os_str().to_owned();
        log.push("-wal");
        std::fs::metadata(log).ok()?.modified().ok()
    }

    /// The options of a connection; a `durable` one syncs each commit to the disk.
    pub(super) fn options(&self, durable: bool) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new()
            // A waiting pull fetches up to 25 times a second.
            .disable_statement_logging()
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("journal_size_limit", LOG_SIZE)
            .synchronous(if durable {
                SqliteSynchronous::Full
            } else {
                SqliteSynchronous::Normal
            });
        match self {
            Self::Memory => options.in_memory(true),
            Self::File { path, .. } => options.filename(path),
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File { shown, .. } => write!(f, "file {}", shown.display()),
        }
    }
}
