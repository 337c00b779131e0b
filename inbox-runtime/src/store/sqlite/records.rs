//! Attempts and dead letters on SQLite, which keeps times as milliseconds since 1970.

use sqlx::sqlite::SqliteRow;

use super::{SqliteStore, Writer, trouble, unavailable};

crate::store::tables::records! {
    SqliteRecords(SqliteStore), SqliteRow,
    now: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    later: ["CAST(unixepoch('subsec') * 1000 AS INTEGER) + ", ""],
    time: ["", ""],
    millis: ["", ""],
}
