//! The database side: what the runtime asks of a database, for whoever adds one.
//!
//! A [`Store`] has [`Session`]s, which run the handlers' transactions; [`Connect`] is how it is named and configured. Beside the
//! inbox itself it keeps [`Records`]: [attempts](AttemptStore), [dead letters](DeadLetterStore) and the [outbox](OutboxStore), and answers for the
//! [database as a whole](DatabaseAdmin).
//!
//! The traits are implemented for SQLite and PostgreSQL, as the [`StoreOf`] their connections. What an implementation must do
//! beyond the signatures is said by [`testing::conformance::store`](crate::testing::conformance::store()), which puts one to
//! every rule.
//!
//! A store of your own can't be registered from outside of this crate: `#[inbox_handler]` collects the handlers of each store
//! in a table that this crate declares. To add a database, add it here: `ARCHITECTURE.md` names the folder and the rows.
// `postgres` and `sqlite` have their SQL written out, each for itself; `detached` is the store of handlers without a
// transaction; `faults` asks all of them.

use std::{future::Future, sync::Arc};

mod attempts;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod begin_attempt;
mod claim;
mod connect;
mod database;
mod dead_letters;
pub(crate) mod detached;
pub(crate) mod drivers;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod encoding;
mod error;
pub(crate) mod faults;
mod migrate;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod migrations;
mod outbox;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod reader;
mod rows;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod schema;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transaction;

pub use crate::{outcome::DatabaseFault, outgoing::NewOutboxMessage};
pub use attempts::AttemptStore;
pub use claim::{Claim, Claimed, Fingerprint, NextTx};
pub use connect::{Connect, ConnectError, StoreSettings};
pub use database::DatabaseAdmin;
pub use dead_letters::DeadLetterStore;
pub use error::{AbandonError, ClaimError, FaultClass, FinishError, PublishError, StoreError};
pub use migrate::{MigrateError, MigrateMode};
pub use outbox::{LaneHead, LaneRequest, OutboxHeads, OutboxLane, OutboxRow, OutboxStore, ParkedMessage};
pub use rows::{
    AttemptKey, AttemptLimit, BeginAttempt, DeadLetter, DeadLetterReason, DeadLetterStatus, NewDeadLetter, ReplayToken,
    Stranded,
};

/// A connection that a handler can take as `&mut C`: it tells which store the handler belongs to.
#[diagnostic::on_unimplemented(
    message = "`&mut {Self}` is not a transaction that an inbox handler can take",
    label = "not a connection of an enabled database",
    note = "take `&mut SqliteConnection` (feature `sqlite`) or `&mut PgConnection` (feature `postgres`), from `inbox_runtime::sqlx`",
    note = "a connection type of another version of sqlx is another type: use the sqlx that `inbox_runtime` re-exports"
)]
pub trait InboxConnection: Sized + Send + 'static {
    /// The store of this connection's database.
    type Store: Store<Conn = Self>;
}

/// The store of a connection.
pub type StoreOf<C> = <C as InboxConnection>::Store;

/// A pool that a program hands to the runtime.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pool of an enabled database",
    note = "give a `SqlitePool` (feature `sqlite`) or a `PgPool` (feature `postgres`), from `inbox_runtime::sqlx`"
)]
pub trait IntoStore {
    /// The store of this pool's database.
    type Store: Store;

    /// Makes the store.
    fn into_store(self, settings: StoreSettings) -> Self::Store;
}

/// A database that keeps the inbox.
pub trait Store: Connect {
    /// The connection that handlers take.
    type Conn: Send + 'static;
    /// What a worker holds while it has messages.
    type Session: Session<Conn = Self::Conn>;

    /// A session, proved to be alive.
    fn session(&self) -> impl Future<Output = Result<Self::Session, StoreError>> + Send;

    /// Proves that the database can be used now: takes a connection of the pool and writes an inbox row in a transaction
    /// that is rolled back. Called before a handler is declared blocked, since an error of one message may look like an
    /// outage. The error is the cause in words, for health.
    fn probe(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Attempts, dead letters and the database as a whole, behind `dyn`.
    fn records(&self) -> Arc<dyn Records>;

    /// Inserts the inbox row on a connection with an open transaction that is not a session's.
    fn claim_on(conn: &mut Self::Conn, claim: &Claim<'_>) -> impl Future<Output = Result<Claimed, ClaimError>> + Send;

    /// Writes a message into the outbox on a connection with an open transaction that is not a session's.
    fn publish_on(
        conn: &mut Self::Conn,
        message: &NewOutboxMessage,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Deletes a message that waits for its time, on such a connection. Returns how many had that id.
    fn cancel_on(conn: &mut Self::Conn, message_id: &str) -> impl Future<Output = Result<u64, PublishError>> + Send;

    /// What an error of this database means to a handler, given that its transaction was alive after it and has been rolled
    /// back: the database works, so no code by itself means an outage. An error of another database is the handler's.
    fn classify(&self, fault: &DatabaseFault) -> FaultClass;
}

/// A worker's hold on the database: one transaction after another.
///
/// Dropped in the middle of a transaction it rolls back, and the connection is not used again.
pub trait Session: Send + Sized {
    /// The connection that the handler borrows.
    type Conn: Send + 'static;

    /// Proves that a transaction could be opened and written to now. Only `at_most_once` asks, before it acknowledges what
    /// would be lost otherwise.
    fn probe(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Opens a transaction and inserts the inbox rows of `claims`, if there are any, as its first statement. Returns an answer for
    /// each claim, in their order; the second copy of an id in `claims` is a duplicate of the first. Where all are
    /// duplicates nothing is written, and [`discard`](Self::discard) ends the transaction. An error is about the
    /// transaction, not about one claim: [`StoreError::Locked`] when any of the rows is another transaction's for longer than
    /// `lock_wait`.
    fn begin(&mut self, claims: &[Claim<'_>]) -> impl Future<Output = Result<Vec<Claimed>, StoreError>> + Send;

    /// The connection with the open transaction. Until [`finish`](Self::finish) or [`abandon`](Self::abandon) nobody but
    /// the runtime can end that transaction unnoticed.
    fn conn(&mut self) -> &mut Self::Conn;

    /// Writes `outbox`, what the handler has published, in this order; proves that the transaction is alive and ours (the seal),
    /// and commits it. `next` may be begun in the same round trip; the result doesn't tell, and the next
    /// [`begin`](Self::begin) returns what became of it.
    fn finish(
        &mut self,
        outbox: &[NewOutboxMessage],
        next: NextTx<'_>,
    ) -> impl Future<Output = Result<(), FinishError>> + Send;

    /// Proves that the transaction is ours, and rolls it back.
    fn abandon(&mut self) -> impl Future<Output = Result<(), AbandonError>> + Send;

    /// Ends a transaction in which nothing was written, because the claim found a row. After an error the session can't
    /// be used again.
    fn discard(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns to the pool what the session holds: there is no next message.
    fn release(self) -> impl Future<Output = ()> + Send;
}

/// Everything that a database does outside of handlers' transactions. Every call is a transaction of its own.
pub trait Records: AttemptStore + DeadLetterStore + OutboxStore + DatabaseAdmin {}

impl<T: AttemptStore + DeadLetterStore + OutboxStore + DatabaseAdmin> Records for T {}
