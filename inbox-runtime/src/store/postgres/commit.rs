//! The commit: sealed, in one round trip with the beginning of the next transaction; and what its errors mean.

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either};

use super::{
    cancel::cancel_after_commit,
    commit_and_begin::{BeginResult, CommitError, CommitRequest, commit_and_begin},
    connection::{OpenTx, PostgresSession, PrefetchedClaim},
    errors::{Meaning, is_definite, is_ended_session, meaning},
    fate::DrainError,
    publish::OutboxSql,
    rollback::ENDED,
};
use crate::store::{Claim, FinishError, NewOutboxMessage, NextTx};

const SWALLOWED: &str = "a statement of the handler failed and its error was ignored, after which PostgreSQL commits \
                         nothing; return the error, or run the statement in a nested transaction";
const NESTED: &str = "the handler left a nested transaction open; commit it, roll it back or let it drop";
const RUNNING: &str = "a statement that the handler gave up on was still running when the handler returned, so nothing was \
                       committed; wait for it, or let it be cancelled by a `statement_timeout`";

impl PostgresSession {
    /// Seals and commits, and begins the next transaction. Whatever it returns, the session can go on.
    pub(super) async fn seal_and_commit(
        &mut self,
        outbox: &[NewOutboxMessage],
        next: NextTx<'_>,
    ) -> Result<(), FinishError> {
        match self.drain().await {
            Ok(()) => {}
            Err(DrainError::Running) => return Err(self.still_running().await),
            Err(DrainError::Lost(error)) => return Err(self.lost_commit(&error).await),
        }
        if self.depth() > 1 {
            self.close().await;
            return Err(FinishError::Broken(NESTED.to_owned()));
        }
        let outbox = self.outbox_sql(outbox);
        let wait = self.store.settings.commit_timeout;
        match tokio::time::timeout(wait, self.commit(&outbox, next)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.failed_commit(error).await),
            Err(_) => {
                let error = format!("the commit had no answer within {}", humantime::format_duration(wait));
                Err(self.lost_commit(&sqlx::Error::Protocol(error)).await)
            }
        }
    }

    async fn commit(&mut self, outbox: &OutboxSql, next: NextTx<'_>) -> Result<(), CommitError> {
        match next {
            NextTx::None if self.is_pooled() => self.commit_pooled(outbox).await,
            NextTx::None => self.commit_and_begin(outbox, false, None).await,
            NextTx::Begin => self.commit_and_begin(outbox, true, None).await,
            NextTx::Claim(claim) => self.commit_and_begin(outbox, true, Some(&claim)).await,
        }
    }

    /// Two statements, between which a transaction pooler keeps the connection.
    async fn commit_pooled(&mut self, outbox: &OutboxSql) -> Result<(), CommitError> {
        self.write_and_seal(outbox).await?;
        let committed = async {
            let conn = self.live()?;
            conn.commit().await?;
            conn.taint();
            Ok(())
        };
        committed.await.map_err(CommitError::Commit)?;
        self.open = None;
        Ok(())
    }

    /// Writes what was published and seals, behind a transaction pooler. In one simple query: if the handler has ended the transaction,
    /// what is written is undone where the seal fails.
    async fn write_and_seal(&mut self, outbox: &OutboxSql) -> Result<(), CommitError> {
        let sql = format!("{}{}", outbox.text, self.seal());
        let conn = self.live().map_err(CommitError::Seal)?;
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut **conn);
        let mut done = 0;
        loop {
            match answers.try_next().await {
                Ok(Some(Either::Left(_))) => done += 1,
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => return Ok(()),
                Err(error) if done < outbox.statements => return Err(CommitError::Outbox(error)),
                Err(error) => return Err(CommitError::Seal(error)),
            }
        }
    }

    async fn commit_and_begin(
        &mut self,
        outbox: &OutboxSql,
        begins: bool,
        claim: Option<&Claim<'_>>,
    ) -> Result<(), CommitError> {
        let seal = self.seal();
        let xid = self.xid().map(str::to_owned);
        let (pool, pid, claim_sql) = (self.store.pool.clone(), self.pid, self.store.claim_sql());
        let Some(conn) = &mut self.conn else {
            return Err(CommitError::Seal(sqlx::Error::PoolClosed));
        };
        let request = CommitRequest {
            outbox,
            seal: &seal,
            begins,
            claim,
            events: &claim_sql.events,
            prepared: &mut self.prepared.claim,
            wait: self.store.settings.lock_wait,
        };
        let cancel = || cancel_after_commit(&pool, pid, xid.as_deref());
        let answer = commit_and_begin(conn, request, cancel).await?;
        // This transaction is committed. An error after the commit is left to the next `begin`.
        match answer.next {
            BeginResult::Failed(error) => {
                tracing::debug!(%error, "the next message could not be claimed in advance");
                self.open = Some(OpenTx::new(None));
                self.recover(&error).await;
            }
            // The cancel may arrive late and hit whatever runs then.
            BeginResult::Cancelled => self.close().await,
            BeginResult::Unclaimed => self.open = begins.then(|| OpenTx::new(None)),
            BeginResult::Claimed(xid) => {
                let mut open = OpenTx::new(Some(xid));
                open.prefetched = claim.map(PrefetchedClaim::of);
                self.open = Some(open);
            }
        }
        if answer.dirty && self.conn.is_some() {
            match self.rollback().await {
                Ok(()) => self.discard_temp().await,
                Err(_) => self.close().await,
            }
        }
        Ok(())
    }

    /// The seal or the commit was answered with an error, or not at all.
    async fn failed_commit(&mut self, error: CommitError) -> FinishError {
        let (step, error) = error.into_parts();
        match meaning(step, &error) {
            Meaning::Aborted => {
                self.close().await;
                FinishError::Broken(SWALLOWED.to_owned())
            }
            Meaning::Ended => {
                self.close().await;
                FinishError::Broken(ENDED.to_owned())
            }
            meaning @ (Meaning::Retry | Meaning::Stale | Meaning::Unprepared) => {
                if meaning == Meaning::Unprepared {
                    self.stop_naming_statements();
                }
                self.recover(&error).await;
                FinishError::Retry(error)
            }
            Meaning::Refused => {
                self.recover(&error).await;
                FinishError::Refused(error)
            }
            _ => self.lost_commit(&error).await,
        }
    }

    /// A statement of the handler's is still running: it is ended with the connection.
    async fn still_running(&mut self) -> FinishError {
        match self.resolve().await {
            // Only the handler itself can have committed it, since it was not sealed.
            Some(true) => FinishError::Broken(ENDED.to_owned()),
            _ => FinishError::SessionMisused(RUNNING.to_owned()),
        }
    }

    /// The connection was lost while the transaction was being committed. That the server has a committed transaction of that
    /// id is no reason to acknowledge: after a failover it may be another one. The redelivery finds the inbox row, or doesn't.
    async fn lost_commit(&mut self, error: &sqlx::Error) -> FinishError {
        // The server has answered and lives, or has ended this session: it is what the handler did with it.
        let misused = is_definite(error) || is_ended_session(error);
        match self.resolve().await {
            Some(false) if misused => FinishError::SessionMisused(format!(
                "nothing was committed, because of what the handler did with its session: {error}"
            )),
            Some(false) => FinishError::Lost(format!("the transaction was not committed: {error}")),
            _ => FinishError::Lost(format!("the outcome of the commit is unknown: {error}")),
        }
    }
}
