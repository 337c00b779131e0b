//! The session of a worker on SQLite: begin, claim, seal, commit.

use std::{io, mem, time::Duration};

use sqlx::{Connection, Sqlite, SqliteConnection};
use tokio::time::{Instant, timeout};

use super::{
    claim,
    errors::{commit, not_written, own_statement, unavailable, unknown_outcome},
    guard::{Ended, Guard},
    outbox,
    pool::{END_WAIT, SqliteStore, Writer},
};
use crate::{
    error_chain::text,
    failpoint::failpoint,
    store::{AbandonError, Claim, Claimed, FinishError, NewOutboxMessage, NextTx, Session, StoreError, transaction},
};

/// How long a commit may wait for the disk. Past it its outcome is unknown.
const COMMIT_WAIT: Duration = Duration::from_secs(10);

/// How long a message that is acknowledged before its transaction begins waits for the write lock, which another process may
/// have taken meanwhile. Past it the message is lost.
const ACKNOWLEDGED_WAIT: Duration = Duration::from_secs(30);

/// A worker's session. Between two messages it holds neither a connection nor the right to write.
#[derive(Debug)]
pub struct SqliteSession {
    store: SqliteStore,
    /// The next message is acknowledged before its transaction begins.
    probed: bool,
    open: Option<GuardedTx>,
}

/// An open transaction. Dropped, it interrupts a statement that still runs and closes the connection, which rolls back.
#[derive(Debug)]
struct GuardedTx {
    guard: Guard,
    writer: Writer,
    /// The handler has left the connection as it was, so that others may have it.
    unchanged: bool,
}

impl SqliteSession {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self {
            store,
            probed: false,
            open: None,
        }
    }

    /// Opens a transaction.
    async fn open(&mut self) -> Result<&mut GuardedTx, StoreError> {
        let patience = if mem::take(&mut self.probed) {
            ACKNOWLEDGED_WAIT
        } else {
            Duration::ZERO
        };
        let deadline = Instant::now() + patience;
        loop {
            match self.try_open().await {
                Ok(open) => return Ok(self.open.insert(open)),
                Err(_) if self.store.file.is_locked() && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_open(&self) -> Result<GuardedTx, StoreError> {
        let mut writer = self.store.writer().await?;
        let guard = Guard::install(&mut writer.conn).await.map_err(unavailable)?;
        writer.begin().await?;
        guard.arm();
        Ok(GuardedTx {
            guard,
            writer,
            unchanged: false,
        })
    }
}

impl GuardedTx {
    /// Proves that the transaction is ours, and that nothing runs or is open inside it.
    async fn seal(&mut self) -> Result<(), SealError> {
        // A nested transaction that was dropped is rolled back by the connection's thread: this waits until it has been.
        match timeout(END_WAIT, self.writer.is_unchanged()).await {
            Ok(unchanged) => self.unchanged = unchanged,
            Err(_) => {
                return Err(FinishError::SessionMisused(
                    "a statement that the handler had given up (by a timeout or a `select!` of its own) was still running \
                     when the handler returned, and was stopped; await each statement, or bound it in SQL"
                        .to_owned(),
                )
                .into());
            }
        }
        let depth = transaction::depth::<Sqlite>(&self.writer.conn);
        self.guard.begin_end().map_err(SealError::Ended)?;
        if depth == 1 {
            Ok(())
        } else {
            Err(FinishError::Broken(
                "the handler left a nested transaction open; commit it, roll it back or let it drop".to_owned(),
            )
            .into())
        }
    }

    async fn commit(&mut self) -> Result<(), FinishError> {
        match timeout(COMMIT_WAIT, self.writer.commit_and_keep()).await {
            // Committed, but perhaps to a file that was deleted.
            Ok(Ok(())) => self
                .writer
                .check_file(true)
                .map_err(|error| FinishError::Lost(text(&error))),
            Ok(Err(error)) => Err(commit(error)),
            Err(_) => {
                let late = format!("it took longer than {} s", COMMIT_WAIT.as_secs());
                let late = io::Error::new(io::ErrorKind::TimedOut, late);
                Err(unknown_outcome(&sqlx::Error::Io(late)))
            }
        }
    }

    /// Rolls back. Returns whether a transaction was still open.
    async fn roll_back(&mut self) -> Result<bool, RollbackError> {
        self.guard.begin_abandon().map_err(RollbackError::Ended)?;
        // Waits until a statement that a dropped handler left running has been interrupted.
        self.writer.conn.ping().await.map_err(RollbackError::Lost)?;
        if !self.guard.end_abandon() {
            return Ok(false);
        }
        self.writer.conn.rollback().await.map_err(RollbackError::Lost)?;
        self.writer.conn.taint();
        self.unchanged = self.writer.is_unchanged().await;
        Ok(true)
    }

    /// After the end of the transaction: returns the connection to the pool, or closes it if the handler left something on it.
    async fn end(self) {
        self.guard.disarm();
        if self.unchanged {
            self.writer.return_to_pool().await;
        }
    }
}

/// Why a transaction can't be committed.
enum SealError {
    Ended(Ended),
    Other(FinishError),
}

impl From<FinishError> for SealError {
    fn from(error: FinishError) -> Self {
        Self::Other(error)
    }
}

/// Why a transaction can't be rolled back.
enum RollbackError {
    Ended(Ended),
    Lost(sqlx::Error),
}

impl Session for SqliteSession {
    type Conn = SqliteConnection;

    async fn probe(&mut self) -> Result<(), StoreError> {
        let open = self.open().await?;
        // A table is read too: BEGIN alone doesn't read the file.
        sqlx::query("SELECT 1 FROM inbox_events LIMIT 1")
            .fetch_optional(&mut *open.writer.conn)
            .await
            .map_err(own_statement)?;
        // Releases the right to write: no other handler of this file must wait for the broker that is asked next.
        self.discard().await?;
        self.probed = true;
        Ok(())
    }

    async fn begin(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Claimed>, StoreError> {
        let open = self.open().await?;
        failpoint!("after_begin");
        let conn = &mut open.writer.conn;
        let answers = match claims {
            [] => return Ok(Vec::new()),
            [claim] => vec![claim::insert(conn, claim).await.map_err(own_statement)?],
            claims => claim::insert_all(conn, claims).await.map_err(own_statement)?,
        };
        failpoint!("after_claim");
        Ok(answers)
    }

    fn conn(&mut self) -> &mut SqliteConnection {
        match &mut self.open {
            Some(open) => &mut open.writer.conn,
            None => unreachable!("the pipeline uses the connection between begin and finish only"),
        }
    }

    async fn finish(&mut self, outbox: &[NewOutboxMessage], _next: NextTx<'_>) -> Result<(), FinishError> {
        let Some(mut open) = self.open.take() else {
            return Err(unknown_outcome(&sqlx::Error::WorkerCrashed));
        };
        match open.seal().await {
            Ok(()) => {}
            Err(SealError::Other(error)) => return Err(error),
            Err(SealError::Ended(how)) => {
                drop(open);
                // SQLite itself rolls back when the disk is full or fails, whatever the handler does with the error.
                if how == Ended::RolledBack {
                    self.store
                        .write_and_delete()
                        .await
                        .map_err(|error| FinishError::Lost(text(&error)))?;
                }
                return Err(FinishError::Broken(how.text().to_owned()));
            }
        }
        // Behind the seal: from here on nobody but the runtime uses the connection, and its transaction is ours.
        for message in outbox {
            outbox::insert(&mut open.writer.conn, message)
                .await
                .map_err(not_written)?;
        }
        failpoint!("before_commit");
        open.commit().await?;
        open.end().await;
        Ok(())
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        match timeout(END_WAIT, open.roll_back()).await {
            Ok(Ok(true)) => open.end().await,
            // Dropped, the connection is closed, which ends what still runs on it.
            Ok(Ok(false)) | Err(_) => {}
            Ok(Err(RollbackError::Lost(error))) => return Err(AbandonError::Lost(error.to_string())),
            Ok(Err(RollbackError::Ended(Ended::RolledBack))) => {
                drop(open);
                self.store
                    .write_and_delete()
                    .await
                    .map_err(|error| AbandonError::Lost(text(&error)))?;
                return Err(AbandonError::RolledBack(Ended::RolledBack.text().to_owned()));
            }
            Ok(Err(RollbackError::Ended(how))) => return Err(AbandonError::Broken(how.text().to_owned())),
        }
        Ok(())
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        self.abandon().await.map_err(|error| match error {
            AbandonError::Lost(error) => StoreError::Unavailable(error.into()),
            AbandonError::Broken(how) | AbandonError::RolledBack(how) => StoreError::Unavailable(how.into()),
        })
    }

    /// Nothing is held between two transactions.
    async fn release(self) {}
}
