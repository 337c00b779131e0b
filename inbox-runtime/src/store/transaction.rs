//! A pooled connection that is closed on drop unless it is proved to be outside of any transaction, with sqlx's own
//! transaction functions.
//!
//! A [`sqlx::Transaction`] borrows its connection, so a session could not own both. sqlx's transaction manager does the
//! same on a plain connection and keeps sqlx's count of nested transactions right, which a raw `BEGIN` would not: a
//! handler's `tx.begin()` must be a savepoint. sqlx doesn't re-export that trait, so it is taken from `sqlx-core`.

use std::ops::{Deref, DerefMut};

use sqlx::{Database, Result, SqlSafeStr, pool::PoolConnection};
use sqlx_core::transaction::TransactionManager;

use super::error::PublishError;

/// A connection of a pool on which a transaction may be open.
///
/// From before `BEGIN` is sent until `COMMIT` or `ROLLBACK` has been confirmed, dropping it (with the future that uses it,
/// at any await) closes the connection, so that the pool never gets back one that is in a transaction: whatever the
/// application wrote on it would be lost without an error. sqlx itself counts a transaction only once `BEGIN` is confirmed.
#[derive(Debug)]
pub(crate) struct TxConnection<DB: Database> {
    conn: Option<PoolConnection<DB>>,
    idle: bool,
}

impl<DB: Database> TxConnection<DB> {
    /// A connection that the pool has just lent, on which no transaction is open.
    pub(crate) fn new(conn: PoolConnection<DB>) -> Self {
        Self {
            conn: Some(conn),
            idle: true,
        }
    }

    /// Opens a transaction with that statement.
    pub(crate) async fn begin(&mut self, statement: &'static str) -> Result<()> {
        self.idle = false;
        DB::TransactionManager::begin(self, Some(statement.into_sql_str())).await
    }

    /// Commits the transaction. Does nothing where none is open.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        DB::TransactionManager::commit(self).await?;
        self.idle = depth::<DB>(self) == 0;
        Ok(())
    }

    /// Rolls back the transaction with everything that is nested in it. Does nothing where none is open.
    pub(crate) async fn rollback(&mut self) -> Result<()> {
        while depth::<DB>(self) > 0 {
            DB::TransactionManager::rollback(self).await?;
        }
        self.idle = true;
        Ok(())
    }

    /// From now on the connection is closed on drop: for session state that isn't a transaction.
    pub(crate) fn taint(&mut self) {
        self.idle = false;
    }

    /// The session state is as it was when the pool lent it.
    pub(crate) fn clean(&mut self) {
        self.idle = depth::<DB>(self) == 0;
    }

    /// Closes the connection; its database rolls back what is open on it.
    #[cfg(feature = "postgres")]
    pub(crate) async fn close(mut self) -> Result<()> {
        match self.conn.take() {
            Some(conn) => conn.close().await,
            None => Ok(()),
        }
    }
}

/// `conn` is `None` only while [`close`](TxConnection::close) consumes it.
const CLOSING: &str = "the connection is being closed";

impl<DB: Database> Deref for TxConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        self.conn.as_ref().expect(CLOSING)
    }
}

impl<DB: Database> DerefMut for TxConnection<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.conn.as_mut().expect(CLOSING)
    }
}

impl<DB: Database> Drop for TxConnection<DB> {
    fn drop(&mut self) {
        if !self.idle
            && let Some(conn) = &mut self.conn
        {
            conn.close_on_drop();
        }
    }
}

/// Fails on a connection without a transaction of sqlx's: what is published there would be committed by itself.
pub(crate) fn require<DB: Database>(conn: &DB::Connection) -> std::result::Result<(), PublishError> {
    if depth::<DB>(conn) == 0 {
        return Err(PublishError::NoTransaction);
    }
    Ok(())
}

/// How many transactions are open: 1, and one more for each savepoint.
pub(crate) fn depth<DB: Database>(conn: &DB::Connection) -> usize {
    DB::TransactionManager::get_transaction_depth(conn)
}
