//! PostgreSQL: a worker keeps its connection while it has messages, and proves each transaction before it commits.
//!
//! The life of a transaction: `begin` → `claim` → the handler → `commit` (with the `seal`) or `rollback`; if the connection is
//! lost at its end, `fate`.

mod attempts;
mod begin;
mod cancel;
mod catalog;
mod claim;
mod commit;
mod commit_and_begin;
mod connect;
mod connection;
mod database;
mod dead_letters;
mod driver;
mod errors;
mod fate;
mod migrate;
mod outbox;
mod pool;
mod probe;
mod publish;
mod rollback;
mod seal;
mod session;
mod setup;
mod simple_query;
mod simple_text;

pub use connection::PostgresSession;
pub(super) use errors::is_missing;
pub use pool::PostgresStore;
