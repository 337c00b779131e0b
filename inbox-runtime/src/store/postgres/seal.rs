//! The seal: proves that a transaction is alive and ours before it is committed, and before a rollback counts as one.

use std::sync::atomic::Ordering;

use sqlx::{AssertSqlSafe, Row};

use super::{
    ahead::{self, Ahead, Answer},
    claim::{Named, Open, PostgresSession},
    code,
    statements::first,
};
use crate::store::{AbandonError, Claim, Following};

/// SQLSTATE of a prepared statement that isn't there.
pub(super) const UNPREPARED: &str = "26000";

pub(super) const ENDED: &str = "the handler ended the transaction that it was lent (COMMIT, ROLLBACK, or a `begin()` that was dropped \
                     before it was done)";

impl PostgresSession {
    /// The statement that proves that the transaction is alive and ours: it fails in any other.
    pub(super) fn seal(&self) -> String {
        // Our own digits are the only thing that is put into the text.
        let xid = self.open.as_ref().and_then(|open| open.xid.as_deref()).unwrap_or("0");
        if self.named.seal {
            format!("EXECUTE inbox_seal ('{xid}')")
        } else {
            format!("SELECT 1/(pg_current_xact_id() = '{xid}'::xid8)::int")
        }
    }

    /// Runs a simple query that gives no rows of interest.
    pub(super) async fn run(&mut self, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **self.live()?).await?;
        Ok(())
    }

    /// A handler has deallocated what was prepared.
    pub(super) fn do_without_names(&mut self) {
        self.named = Named::default();
        if !self.store.plain.swap(true, Ordering::Relaxed) {
            tracing::warn!("a handler deallocates prepared statements; the inbox goes on without its own");
        }
    }

    /// Seals and commits. What follows is begun in the same round trip.
    pub(super) async fn commit(&mut self, following: Following<'_>) -> sqlx::Result<()> {
        let seal = self.seal();
        match following {
            Following::Nothing => {
                self.run(seal).await?;
                let conn = self.live()?;
                conn.commit().await?;
                conn.taint();
                self.open = None;
            }
            Following::Message => {
                self.run(seal + "; COMMIT AND CHAIN").await?;
                self.open = Some(Open::new());
            }
            Following::Claim(claim) => self.commit_and_claim(&seal, &claim).await?,
        }
        Ok(())
    }

    pub(super) async fn commit_and_claim(&mut self, seal: &str, claim: &Claim<'_>) -> sqlx::Result<()> {
        let Some(conn) = &mut self.conn else {
            return Err(sqlx::Error::PoolClosed);
        };
        let request = ahead::Request {
            seal,
            claim,
            prepared: &mut self.named.claim,
            wait: self.store.settings.lock_wait,
            lock_timeout: &self.lock_timeout,
        };
        let answer = ahead::commit_and_claim(conn, request).await?;
        let mut open = Open::new();
        if let Answer::Claimed(xid) = &answer {
            open.xid = Some(xid.clone());
            open.ahead = Some(Ahead::of(claim));
        }
        self.open = Some(open);
        if let Answer::Failed(error) = answer {
            // The message's turn comes, and then what is wrong is its trouble; this one is committed.
            tracing::debug!(%error, "the next message could not be claimed ahead");
            self.recover(&error).await;
        }
        Ok(())
    }

    /// After the handler's failure: whether the transaction was still ours tells the seal, and where that can't be asked
    /// because a statement failed, the server's record of what became of it.
    pub(super) async fn roll_back_sealed(&mut self) -> Result<(), AbandonError> {
        match self.run(self.seal()).await {
            Ok(()) => return self.rollback().await.map_err(AbandonError::Lost),
            Err(error) => match code(&error).as_deref() {
                Some("25P02") => {}
                Some(UNPREPARED) => self.do_without_names(),
                Some("22012") => return Err(AbandonError::Broken(ENDED.to_owned())),
                _ => return Err(AbandonError::Lost(error)),
            },
        }
        let xid = self.open.as_ref().and_then(|open| open.xid.clone());
        self.rollback().await.map_err(AbandonError::Lost)?;
        let asked = async {
            let sql = format!("SELECT pg_xact_status('{}'::xid8)", xid.as_deref().unwrap_or("0"));
            first(self.live()?, sql).await?.try_get::<Option<String>, _>(0)
        };
        let status = asked.await.map_err(AbandonError::Lost)?;
        if status.as_deref() == Some("committed") {
            return Err(AbandonError::Broken(ENDED.to_owned()));
        }
        Ok(())
    }
}
