//! SQLite: one writer at a time, and hooks that let nobody but the runtime end its transaction.

mod attempts;
mod catalog;
mod claim;
mod connect;
mod database;
mod dead_letters;
mod driver;
mod errors;
mod file;
mod guard;
mod migrate;
mod outbox;
mod pool;
mod session;
mod settings;

pub(super) use errors::is_missing;
pub use pool::SqliteStore;
pub use session::SqliteSession;
