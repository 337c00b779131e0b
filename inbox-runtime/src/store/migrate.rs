//! What the start does about the inbox's tables, and why it may fail.

use std::error::Error as StdError;

/// What is done about missing tables at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrateMode {
    /// They are made, and then checked as by [`Check`](Self::Check). The default.
    #[default]
    Auto,
    /// They are checked: one that is missing, or has other columns, types, collations, keys or rights than it must have,
    /// is a start error that lists every difference.
    Check,
    /// Nothing. The inbox is ready only when they can be written to, and waits until they can.
    Off,
}

/// Why the tables could not be made, or are not as they must be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database can't be used now.
    #[error("the database is not available")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// A migration failed.
    #[error(
        "the inbox's tables can't be made or looked at (where this role may not make them, let another one call \
         `inbox_runtime::migrate`, and set INBOX_MIGRATE=check)"
    )]
    Failed(#[source] Box<dyn StdError + Send + Sync>),
    /// The tables are missing or of another shape; the text says what and what to do.
    #[error("{0}")]
    Shape(String),
}
