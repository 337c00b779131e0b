//! The session of a worker on PostgreSQL: which step comes next, and which round trips are saved.
//!
//! While one message follows another, each costs the handler's statements and one simple query, which seals, commits, begins
//! the next transaction and claims its message (`commit_and_begin`).

use std::time::Duration;

use sqlx::PgConnection;

use super::{connection::PostgresSession, errors::own_statement};
use crate::{
    failpoint::failpoint,
    store::{AbandonError, Claim, Claimed, FinishError, NewOutboxMessage, NextTx, Session, StoreError},
};

/// How long an open transaction may be kept for the next message: its `now()` stands still.
const KEEP: Duration = Duration::from_millis(250);

impl PostgresSession {
    /// Whether the open transaction is young enough for the next message.
    fn is_fresh(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.since.elapsed() < KEEP)
    }
}

impl Session for PostgresSession {
    type Conn = PgConnection;

    /// Reading and beginning are what the handler needs; a server that can't be written to refuses to begin.
    async fn probe(&mut self) -> Result<(), StoreError> {
        self.ensure_open().await?;
        self.first_statement(&[]).await?;
        self.rollback().await.map_err(own_statement)
    }

    async fn begin(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Claimed>, StoreError> {
        let fresh = self.is_fresh();
        let claimed = match self.open.as_mut().and_then(|open| open.prefetched.take()) {
            Some(prefetched) if prefetched.is(claims) && fresh => {
                self.duplicates = 0;
                failpoint!("after_begin");
                vec![Claimed::Fresh]
            }
            prefetched => {
                if prefetched.is_some() || (self.open.is_some() && !fresh) {
                    // It is too old, or has claimed a message that this worker doesn't get any more.
                    self.rollback().await.map_err(own_statement)?;
                }
                self.begin_and_claim(claims).await?
            }
        };
        if !claims.is_empty() {
            failpoint!("after_claim");
        }
        Ok(claimed)
    }

    fn conn(&mut self) -> &mut PgConnection {
        match &mut self.conn {
            Some(conn) => conn,
            None => unreachable!("the pipeline uses the connection between begin and finish only"),
        }
    }

    async fn finish(&mut self, outbox: &[NewOutboxMessage], next: NextTx<'_>) -> Result<(), FinishError> {
        failpoint!("before_commit");
        let expired = self.is_expired();
        let next = match next {
            _ if expired || self.is_pooled() || self.is_writable_check_due() => NextTx::None,
            NextTx::Claim(_) if !self.prepared.seal => NextTx::Begin,
            next => next,
        };
        self.seal_and_commit(outbox, next).await?;
        if expired {
            self.close().await;
        }
        Ok(())
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        self.prove_and_roll_back().await
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        if self.is_fresh() && self.read_committed && !self.is_pooled() {
            // The next message gets it.
            return Ok(());
        }
        if let Err(error) = self.rollback().await {
            self.close().await;
            return Err(own_statement(error));
        }
        Ok(())
    }

    async fn release(self) {
        self.return_to_pool().await;
    }
}
