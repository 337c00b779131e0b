//! The beginning of a transaction: BEGIN and the claim, unless the commit before has made them.

use sqlx::Row;

use super::{
    cancel::cancel,
    claim::{BEGIN, FirstAnswer, FirstStatement, within},
    connection::{OpenTx, PostgresSession},
    errors::{Step, own_statement, store_error, unavailable},
    pool::begin_pooled,
    simple_query::query_first,
};
use crate::{
    failpoint::failpoint,
    store::{Claim, Claimed, StoreError},
};

/// After how many duplicates in a row the next message is expected to be one too.
const STREAK: u32 = 2;

impl PostgresSession {
    /// Opens a transaction, unless one is open, and claims in it.
    pub(super) async fn begin_and_claim(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Claimed>, StoreError> {
        if claims.is_empty() && self.is_parked() {
            return self.begin_parked().await;
        }
        self.ensure_open().await?;
        failpoint!("after_begin");
        let answer = self.first_statement(claims).await?;
        let is_fresh = answer.claimed.iter().any(|claimed| !claimed.is_duplicate());
        self.duplicates = if claims.is_empty() || is_fresh {
            0
        } else {
            self.duplicates.saturating_add(1)
        };
        if let Some(open) = &mut self.open {
            open.xid = answer.xid;
        }
        Ok(answer.claimed)
    }

    /// Makes sure that there is a connection with an open transaction.
    pub(super) async fn ensure_open(&mut self) -> Result<(), StoreError> {
        if self.conn.is_none() {
            *self = Self::open(&self.store).await?;
        }
        if self.open.is_none() {
            self.check_writable().await?;
            self.open_transaction().await?;
        }
        Ok(())
    }

    /// Opens a transaction.
    async fn open_transaction(&mut self) -> Result<(), StoreError> {
        let (pooled, parked) = (self.is_pooled(), self.is_parked());
        let opened = async {
            if parked {
                return self.run(BEGIN.to_owned()).await;
            }
            let conn = self.live()?;
            if !pooled {
                return conn.begin(BEGIN).await;
            }
            begin_pooled(conn, BEGIN).await?;
            // Each transaction may be on another of the pooler's connections.
            let row = query_first(conn, "SELECT pg_backend_pid()".to_owned()).await?;
            self.pid = row.try_get(0)?;
            Ok(())
        };
        match opened.await {
            Ok(()) => {
                self.open = Some(OpenTx::new(None));
                Ok(())
            }
            Err(error) => {
                self.close().await;
                Err(own_statement(error))
            }
        }
    }

    /// Whether sqlx counts a transaction that has been committed: the last commit was ours and has begun nothing.
    fn is_parked(&self) -> bool {
        self.open.is_none() && self.depth() == 1
    }

    /// Begins a transaction without a claim after a commit that has begun nothing, in one round trip.
    async fn begin_parked(&mut self) -> Result<Vec<Claimed>, StoreError> {
        self.check_writable().await?;
        let begun = async {
            let sql = format!("{BEGIN}; SELECT pg_current_xact_id()::text");
            query_first(self.live()?, sql).await?.try_get(0)
        };
        match begun.await {
            Ok(xid) => {
                self.open = Some(OpenTx::new(Some(xid)));
                Ok(Vec::new())
            }
            Err(error) => {
                self.close().await;
                Err(own_statement(error))
            }
        }
    }

    /// The claims, or at least the transaction's id, within `lock_wait`.
    pub(super) async fn first_statement(&mut self, claims: &[Claim<'_>]) -> Result<FirstAnswer, StoreError> {
        let (pool, pid, lock_wait) = (self.store.pool.clone(), self.pid, self.store.settings.lock_wait);
        let first = match claims {
            [] => FirstStatement::TransactionId,
            [claim] if self.duplicates >= STREAK => FirstStatement::FindThenClaim(claim),
            [claim] => FirstStatement::Claim(claim),
            claims => FirstStatement::ClaimSet(claims),
        };
        let sql = self.store.claim_sql();
        let conn = self.live().map_err(unavailable)?;
        match within(lock_wait, conn, &sql, first, || cancel(&pool, pid)).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                self.recover(&error).await;
                Err(store_error(Step::Claim, error))
            }
            None => {
                // The cancel may arrive late and hit whatever runs then, so this connection runs nothing else.
                self.close().await;
                let why = format!("another transaction has held the inbox row for more than {lock_wait:?}");
                Err(StoreError::Locked(why.into()))
            }
        }
    }
}
