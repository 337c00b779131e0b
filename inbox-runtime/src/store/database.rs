//! What the start, health and operators ask of a database as a whole.

use std::{fmt, path::PathBuf};

use futures_util::future::BoxFuture;

use super::{
    connect::ConnectError,
    error::StoreError,
    migrate::{MigrateError, MigrateMode},
};

/// A database as a whole: its connection, its tables, its state.
pub trait DatabaseAdmin: fmt::Debug + Send + Sync {
    /// Makes a first connection, within a few seconds, and looks at what kind of server answers. The error tells whether
    /// waiting helps.
    fn check_connection(&self) -> BoxFuture<'_, Result<(), ConnectError>>;

    /// Makes the tables, or checks them.
    fn migrate(&self, mode: MigrateMode) -> BoxFuture<'_, Result<(), MigrateError>>;

    /// Proves that the tables exist and can be written to: a row is inserted into `inbox_events` and rolled back.
    fn check_writable(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Proves that the database can be used now, as [`Store::probe`](super::Store::probe) does.
    fn probe(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The database's version and the settings that matter, for the start report.
    fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>>;

    /// Whether the group has left anything: a message that it has handled, an attempt or a dead letter.
    fn has_group<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// The file that the database occupies, if it is one.
    fn file(&self) -> Option<PathBuf>;
}
