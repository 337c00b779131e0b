//! A worker's connection, the transaction that is open on it, and what may be done with both at any time.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Postgres};

use super::{errors, pool::PostgresStore};
use crate::store::{
    Claim,
    transaction::{self, TxConnection},
};

/// How long closing a connection may take: the server may not answer.
pub(super) const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// A worker's hold on the database: one connection, and the transaction that is open on it.
#[derive(Debug)]
pub struct PostgresSession {
    pub(super) store: PostgresStore,
    /// `None` after it was closed; the next transaction opens another.
    pub(super) conn: Option<TxConnection<Postgres>>,
    /// The server process that serves the connection.
    pub(super) pid: i32,
    pub(super) opened: Instant,
    /// When the server was last seen to accept writes.
    pub(super) checked_writable: Instant,
    pub(super) prepared: PreparedNames,
    /// The settings that the session had beyond the defaults of its server and role, as the seal restores them:
    /// `set_config` calls, each after a comma.
    pub(super) restore: String,
    /// How many messages in a row were duplicates.
    pub(super) duplicates: u32,
    /// Whether a statement sees what was committed after its transaction began.
    pub(super) read_committed: bool,
    pub(super) open: Option<OpenTx>,
}

/// The statements that the connection has prepared by name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PreparedNames {
    /// `inbox_seal`.
    pub(super) seal: bool,
    /// `inbox_claim`, which a commit executes for the next transaction.
    pub(super) claim: bool,
}

/// An open transaction.
#[derive(Debug)]
pub(super) struct OpenTx {
    pub(super) since: Instant,
    /// Its id, in digits, once it has one.
    pub(super) xid: Option<String>,
    /// The claim that it has made in advance.
    pub(super) prefetched: Option<PrefetchedClaim>,
}

impl OpenTx {
    pub(super) fn new(xid: Option<String>) -> Self {
        Self {
            since: Instant::now(),
            xid,
            prefetched: None,
        }
    }
}

/// The message whose claim was made in advance.
#[derive(Debug)]
pub(super) struct PrefetchedClaim {
    group: String,
    message_id: String,
}

impl PrefetchedClaim {
    pub(super) fn of(claim: &Claim<'_>) -> Self {
        Self {
            group: claim.group.to_owned(),
            message_id: claim.message_id.to_owned(),
        }
    }

    /// Whether this is the one claim that is asked for.
    pub(super) fn is(&self, claims: &[Claim<'_>]) -> bool {
        matches!(claims, [claim] if claim.group == self.group && claim.message_id == self.message_id)
    }
}

impl PostgresSession {
    pub(super) fn is_pooled(&self) -> bool {
        self.store.is_pooled()
    }

    pub(super) fn live(&mut self) -> sqlx::Result<&mut TxConnection<Postgres>> {
        self.conn.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    /// How many transactions sqlx counts as open, nested ones included.
    pub(super) fn depth(&self) -> usize {
        self.conn.as_deref().map_or(0, transaction::depth::<Postgres>)
    }

    /// The id of the open transaction.
    pub(super) fn xid(&self) -> Option<&str> {
        self.open.as_ref()?.xid.as_deref()
    }

    /// Runs a simple query that returns no rows of interest.
    pub(super) async fn run(&mut self, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **self.live()?).await?;
        Ok(())
    }

    /// Closes the connection; the server rolls back what is open on it.
    pub(super) async fn close(&mut self) {
        self.open = None;
        if let Some(conn) = self.conn.take() {
            let _ = tokio::time::timeout(CLOSE_WAIT, conn.close()).await;
        }
    }

    /// Rolls back everything that is open.
    pub(super) async fn rollback(&mut self) -> sqlx::Result<()> {
        let conn = self.live()?;
        conn.rollback().await?;
        // It still has settings that are ours.
        conn.taint();
        self.open = None;
        Ok(())
    }

    /// After an error of one of our own statements: rolls back, or closes the connection where it can't go on.
    pub(super) async fn recover(&mut self, error: &sqlx::Error) {
        if !errors::spares_connection(error) || self.rollback().await.is_err() {
            self.close().await;
        }
    }

    /// Whether the connection is older than its pool allows.
    pub(super) fn is_expired(&self) -> bool {
        let max = self.store.pool.options().get_max_lifetime();
        max.is_some_and(|max| self.opened.elapsed() > max)
    }
}
