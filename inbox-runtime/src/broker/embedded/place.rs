//! Where an embedded broker lives, how its connections are set up, and its fixed sizes and times.

use std::{
    fmt,
    path::{Path, PathBuf, absolute},
    time::Duration,
};

use sqlx::{
    ConnectOptions,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};

/// What marks a SQLite file as ours, in its header; `IBX1` in ASCII.
pub(super) const APPLICATION_ID: i64 = 0x4942_5831;
/// The version of `schema.sql`.
pub(super) const SCHEMA_VERSION: i64 = 2;

/// How often a process looks whether another one has written to the file, while a pull waits. It is one read of shared
/// memory.
pub(super) const WATCH: Duration = Duration::from_millis(10);
/// How often all waiting pulls look when another process writes other things than messages.
pub(super) const POLL: Duration = Duration::from_millis(40);
/// The longest that a waiting pull doesn't look, whatever happens.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// How often the lag is asked.
pub(super) const LAG: Duration = Duration::from_secs(5);

/// How many settled messages one step of the retention deletes at most: it holds the lock for a few milliseconds.
pub(super) const STEP_MESSAGES: i64 = 256;
/// After so many bytes a step takes no further message.
pub(super) const STEP_BYTES: i64 = 1024 * 1024;
/// So many free pages stay in the file for what is written next: 1 MiB.
pub(super) const SLACK: i64 = 256;
/// Up to this size in bytes a file of version 1 is written anew at the start, so that it can shrink afterwards.
pub(super) const REWRITE: i64 = 128 * 1024 * 1024;
/// The size in bytes to which the write-ahead log is cut when it begins anew.
const LOG_SIZE: &str = "4194304";
/// How long nobody may have had a durable open before it is warned of the messages that it keeps.
pub(super) const ABSENT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a statement waits for the lock of another process.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages one transaction looks at: a long search for a rare subject must let others write in between.
pub(super) const SCAN: i64 = 4096;
/// The longest ack-wait in milliseconds: a time from now plus this fits a column.
pub(super) const MAX_ACK_WAIT: i64 = i64::MAX / 4;

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

    /// The path of the file, if it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory => None,
            Self::File { path, .. } => Some(path),
        }
    }

    /// The options of a connection; `durable` ones have a commit on the disk when it returns.
    pub(super) fn options(&self, durable: bool) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new()
            // A waiting pull asks 25 times a second; a log of that helps nobody.
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::File { shown, .. } => write!(f, "file {}", shown.display()),
        }
    }
}
