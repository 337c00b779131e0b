//! Attempts and dead letters on SQLite, which keeps times as milliseconds since 1970.

use sqlx::sqlite::SqliteRow;

use super::{SqliteStore, Writer, trouble, unavailable};
use crate::store::texts::Charset;

/// The tables beside the inbox.
#[derive(Clone, Debug)]
pub(super) struct SqliteRecords {
    store: SqliteStore,
}

impl SqliteRecords {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self { store }
    }

    #[allow(
        clippy::unused_async,
        clippy::unnecessary_wraps,
        reason = "of the shape that other databases have"
    )]
    async fn charset(&self) -> Result<Charset, StoreError> {
        Ok(Charset::Unicode)
    }
}

/// SQLite takes every value that it is given.
fn is_of_the_message(_error: &sqlx::Error) -> bool {
    false
}

crate::store::tables::records! {
    SqliteRecords, SqliteRow,
    now: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    later: ["CAST(unixepoch('subsec') * 1000 AS INTEGER) + ", ""],
    time: ["", ""],
    millis: ["", ""],
}
