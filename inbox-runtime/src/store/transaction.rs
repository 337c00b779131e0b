//! sqlx's own transaction functions on a connection that outlives the transaction.
//!
//! A [`sqlx::Transaction`] borrows its connection, so a session could not own both. sqlx's transaction manager does the
//! same on a plain connection and keeps sqlx's count of nested transactions right, which a raw `BEGIN` would not: a
//! handler's `tx.begin()` must be a savepoint. sqlx doesn't re-export that trait, so it is taken from `sqlx-core`.

use sqlx::{Database, Result, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

/// Opens a transaction with that statement.
pub(crate) async fn begin<DB: Database>(conn: &mut DB::Connection, statement: &'static str) -> Result<()> {
    DB::TransactionManager::begin(conn, Some(statement.into_sql_str())).await
}

/// Commits the transaction, or releases the innermost savepoint.
pub(crate) async fn commit<DB: Database>(conn: &mut DB::Connection) -> Result<()> {
    DB::TransactionManager::commit(conn).await
}

/// Rolls back the transaction, or to the innermost savepoint.
pub(crate) async fn rollback<DB: Database>(conn: &mut DB::Connection) -> Result<()> {
    DB::TransactionManager::rollback(conn).await
}

/// How many transactions are open: 1, and one more for each savepoint.
pub(crate) fn depth<DB: Database>(conn: &DB::Connection) -> usize {
    DB::TransactionManager::get_transaction_depth(conn)
}
