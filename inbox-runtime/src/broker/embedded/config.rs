//! Where an embedded broker lives, how its connections are set up, and its fixed sizes and times.

use std::{
    fmt,
    path::{Path, PathBuf, absolute},
    time::Duration,
};

use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};

/// What marks a SQLite file as ours, in its header; `IBX1` in ASCII.
pub(super) const APPLICATION_ID: i64 = 0x4942_5831;
/// The version of `schema.sql`.
pub(super) const SCHEMA_VERSION: i64 = 1;

/// How often a waiting pull looks for what other processes did.
pub(super) const POLL: Duration = Duration::from_millis(40);
/// How long a statement waits for the lock of another process.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages one transaction looks at: a long search for a rare subject must let others write in between.
pub(super) const SCAN: i64 = 4096;
/// The longest ack-wait in milliseconds: a time from now plus this fits a column.
pub(super) const MAX_ACK_WAIT: i64 = i64::MAX / 4;
/// The connections that needn't survive a power failure; most of them read, since SQLite has one writer at a time.
pub(super) const RELAXED_CONNECTIONS: u32 = 3;

/// Where the messages are kept.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Memory,
    File {
        /// As the user wrote it, for texts.
        shown: PathBuf,
        /// Decided at once: connections are opened later, when the working directory may be another.
        path: PathBuf,
    },
}

impl Place {
    pub(super) fn file(path: &Path) -> Self {
        Self::File {
            shown: path.to_owned(),
            // It fails for an empty path or a lost working directory; opening then says what is wrong.
            path: absolute(path).unwrap_or_else(|_| path.to_owned()),
        }
    }

    /// The options of a connection; `durable` ones have a commit on the disk when it returns.
    pub(super) fn options(&self, durable: bool) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new()
            .busy_timeout(BUSY_TIMEOUT)
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File { shown, .. } => write!(f, "file {}", shown.display()),
        }
    }
}
