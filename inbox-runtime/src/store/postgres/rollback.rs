//! The rollback after a handler's failure, which counts as one only if the transaction was still ours.

use sqlx::Row;

use super::{
    connection::PostgresSession,
    errors::{Meaning, Step, is_definite, is_ended_session, meaning},
    fate::DrainError,
    simple_query::query_first,
};
use crate::store::AbandonError;

pub(super) const ENDED: &str = "the handler ended the transaction that it was lent (COMMIT, ROLLBACK, or a `begin()` that was dropped \
                     before it was done)";

/// Why a rollback isn't one.
enum RollbackFailure {
    /// The handler had ended the transaction.
    Ended,
    Lost(sqlx::Error),
}

impl From<sqlx::Error> for RollbackFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::Lost(error)
    }
}

impl PostgresSession {
    /// Rolls back. The seal tells whether the transaction was still ours; where it can't be run because a statement has failed,
    /// the server's record of how the transaction ended does.
    pub(super) async fn prove_and_roll_back(&mut self) -> Result<(), AbandonError> {
        if self.conn.is_none() {
            return Ok(());
        }
        match self.drain().await {
            Ok(()) => {}
            Err(DrainError::Running) => return self.end_running().await,
            Err(DrainError::Lost(error)) => return self.lost_rollback(&error).await,
        }
        let wait = self.store.settings.commit_timeout;
        match tokio::time::timeout(wait, self.seal_and_roll_back()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(RollbackFailure::Ended)) => {
                self.close().await;
                Err(AbandonError::Broken(ENDED.to_owned()))
            }
            Ok(Err(RollbackFailure::Lost(error))) => self.lost_rollback(&error).await,
            Err(_) => {
                let error = format!("the rollback had no answer within {}", humantime::format_duration(wait));
                self.lost_rollback(&sqlx::Error::Protocol(error)).await
            }
        }
    }

    async fn seal_and_roll_back(&mut self) -> Result<(), RollbackFailure> {
        match self.run_seal().await {
            Ok(dirty) => {
                self.rollback().await?;
                if dirty {
                    self.discard_temp().await;
                }
                return Ok(());
            }
            Err(error) => match meaning(Step::Seal, &error) {
                Meaning::Aborted => {}
                Meaning::Unprepared => self.stop_naming_statements(),
                Meaning::Ended => return Err(RollbackFailure::Ended),
                _ => return Err(RollbackFailure::Lost(error)),
            },
        }
        let xid = self.xid().unwrap_or("0").to_owned();
        self.rollback().await?;
        let unlock = if self.is_pooled() {
            ""
        } else {
            ", pg_advisory_unlock_all()"
        };
        let sql = format!("SELECT pg_xact_status('{xid}'::xid8){unlock}");
        let status: Option<String> = query_first(self.live()?, sql).await?.try_get(0)?;
        if status.as_deref() == Some("committed") {
            return Err(RollbackFailure::Ended);
        }
        Ok(())
    }

    /// A statement of the handler's is still running: it is ended with the connection, and so is the transaction.
    async fn end_running(&mut self) -> Result<(), AbandonError> {
        match self.resolve().await {
            Some(true) => Err(AbandonError::Broken(ENDED.to_owned())),
            _ => Ok(()),
        }
    }

    async fn lost_rollback(&mut self, error: &sqlx::Error) -> Result<(), AbandonError> {
        match self.resolve().await {
            Some(true) => Err(AbandonError::Broken(ENDED.to_owned())),
            Some(false) if is_ended_session(error) || is_definite(error) => Ok(()),
            _ => Err(AbandonError::Lost(error.to_string())),
        }
    }
}
