//! The session of a worker on SQLite: begin, claim, seal, commit.

use std::{io, mem, time::Duration};

use sqlx::{Connection, Row, Sqlite, SqliteConnection};
use tokio::time::{Instant, timeout};

use super::{
    COMMIT_WAIT, END_WAIT, SqliteStore, Writer,
    guard::{Ended, Guard},
    primary_code, unavailable,
};
use crate::{
    error_chain::text,
    failpoint::failpoint,
    store::{AbandonError, Claim, Claimed, Fingerprint, FinishError, NextTx, Session, StoreError, transaction},
};

/// How long a message that is acknowledged before its transaction begins waits for the write lock, which another process
/// may have taken meanwhile: given up, it is lost.
const ACKNOWLEDGED_WAIT: Duration = Duration::from_secs(30);

/// A worker's hold on the database. It keeps neither a connection nor its turn to write between two messages.
#[derive(Debug)]
pub struct SqliteSession {
    store: SqliteStore,
    /// The message of the next transaction is acknowledged before it begins.
    probed: bool,
    open: Option<Open>,
}

/// An open transaction. Dropped, a statement that still runs is stopped and the connection is closed, which rolls back.
#[derive(Debug)]
struct Open {
    guard: Guard,
    writer: Writer,
    /// The handler has left the connection as it was lent, so that others may have it.
    kept: bool,
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
    async fn open(&mut self) -> Result<&mut Open, StoreError> {
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

    async fn try_open(&self) -> Result<Open, StoreError> {
        let mut writer = self.store.writer().await?;
        let guard = Guard::install(&mut writer.conn).await.map_err(unavailable)?;
        writer.begin().await?;
        guard.arm();
        Ok(Open {
            guard,
            writer,
            kept: false,
        })
    }
}

impl Open {
    /// Shows that the transaction is ours and nobody else's, and that nothing runs or is open inside it.
    async fn seal(&mut self) -> Result<(), Unsealed> {
        // A nested transaction that was dropped is rolled back by the connection's thread: this waits until it has been.
        match timeout(END_WAIT, self.writer.is_kept()).await {
            Ok(kept) => self.kept = kept,
            Err(_) => {
                return Err(FinishError::Ruined(
                    "a statement that the handler had given up (by a timeout or a `select!` of its own) was still running \
                     when the handler returned, and was stopped; await each statement, or bound it in SQL"
                        .to_owned(),
                )
                .into());
            }
        }
        let depth = transaction::depth::<Sqlite>(&self.writer.conn);
        self.guard.ending().map_err(Unsealed::Ended)?;
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
        match timeout(COMMIT_WAIT, self.writer.end()).await {
            // It is done, but where?
            Ok(Ok(())) => self.writer.check(true).map_err(|error| FinishError::Lost(text(&error))),
            // A deferred constraint: the transaction is still open, and is rolled back when the connection closes.
            Ok(Err(error)) if primary_code(&error) == Some(19) => Err(FinishError::Refused(error)),
            Ok(Err(error)) => Err(lost(&error)),
            Err(_) => {
                let late = format!("it took longer than {} s", COMMIT_WAIT.as_secs());
                let late = io::Error::new(io::ErrorKind::TimedOut, late);
                Err(lost(&sqlx::Error::Io(late)))
            }
        }
    }

    /// Rolls back. Returns whether there was a transaction left to be rolled back.
    async fn roll_back(&mut self) -> Result<bool, NotRolledBack> {
        self.guard.abandoning().map_err(NotRolledBack::Ended)?;
        // A statement that a dropped handler left running is stopped: wait until it has been.
        self.writer.conn.ping().await.map_err(NotRolledBack::Lost)?;
        if !self.guard.abandoned() {
            return Ok(false);
        }
        self.writer.conn.rollback().await.map_err(NotRolledBack::Lost)?;
        self.writer.conn.taint();
        self.kept = self.writer.is_kept().await;
        Ok(true)
    }

    /// The transaction is over: gives the connection back, or closes it with what the handler left on it.
    async fn give_back(self) {
        self.guard.disarm();
        if self.kept {
            self.writer.give_back().await;
        }
    }
}

/// Why a transaction can't be committed.
enum Unsealed {
    Ended(Ended),
    Other(FinishError),
}

impl From<FinishError> for Unsealed {
    fn from(error: FinishError) -> Self {
        Self::Other(error)
    }
}

/// Why a transaction can't be rolled back.
enum NotRolledBack {
    Ended(Ended),
    Lost(sqlx::Error),
}

fn lost(error: &sqlx::Error) -> FinishError {
    FinishError::Lost(format!("the outcome of the commit is unknown: {error}"))
}

impl Session for SqliteSession {
    type Conn = SqliteConnection;

    async fn probe(&mut self) -> Result<(), StoreError> {
        let open = self.open().await?;
        // A table is read too: BEGIN alone doesn't look at what is in the file.
        sqlx::query("SELECT 1 FROM inbox_events LIMIT 1")
            .fetch_optional(&mut *open.writer.conn)
            .await
            .map_err(unavailable)?;
        // The turn to write is given up: no other handler of this file is to wait for the broker that is asked next.
        self.discard().await?;
        self.probed = true;
        Ok(())
    }

    async fn begin(&mut self, claim: Option<&Claim<'_>>) -> Result<Claimed, StoreError> {
        let open = self.open().await?;
        failpoint!("after_begin");
        let Some(claim) = claim else {
            return Ok(Claimed::Fresh);
        };
        let claimed = insert(&mut open.writer.conn, claim).await.map_err(unavailable)?;
        failpoint!("after_claim");
        Ok(claimed)
    }

    fn conn(&mut self) -> &mut SqliteConnection {
        match &mut self.open {
            Some(open) => &mut open.writer.conn,
            None => unreachable!("the pipeline uses the connection between begin and finish only"),
        }
    }

    async fn finish(&mut self, _next: NextTx<'_>) -> Result<(), FinishError> {
        let Some(mut open) = self.open.take() else {
            return Err(lost(&sqlx::Error::WorkerCrashed));
        };
        match open.seal().await {
            Ok(()) => {}
            Err(Unsealed::Other(error)) => return Err(error),
            Err(Unsealed::Ended(how)) => {
                drop(open);
                // SQLite itself rolls back when the disk is full or fails, whatever the handler makes of the error.
                if how == Ended::RolledBack {
                    self.store
                        .probe_write()
                        .await
                        .map_err(|error| FinishError::Lost(text(&error)))?;
                }
                return Err(FinishError::Broken(how.text().to_owned()));
            }
        }
        failpoint!("before_commit");
        open.commit().await?;
        open.give_back().await;
        Ok(())
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        match timeout(END_WAIT, open.roll_back()).await {
            Ok(Ok(true)) => open.give_back().await,
            // Whatever still runs on the connection ends with it.
            Ok(Ok(false)) | Err(_) => {}
            Ok(Err(NotRolledBack::Lost(error))) => return Err(AbandonError::Lost(error.to_string())),
            Ok(Err(NotRolledBack::Ended(Ended::RolledBack))) => {
                drop(open);
                self.store
                    .probe_write()
                    .await
                    .map_err(|error| AbandonError::Lost(text(&error)))?;
                return Err(AbandonError::RolledBack(Ended::RolledBack.text().to_owned()));
            }
            Ok(Err(NotRolledBack::Ended(how))) => return Err(AbandonError::Broken(how.text().to_owned())),
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

/// Inserts the inbox row, or says whose row is there.
pub(super) async fn insert(conn: &mut SqliteConnection, claim: &Claim<'_>) -> sqlx::Result<Claimed> {
    let inserted = sqlx::query(
        "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ($1, $2, $3) \
         ON CONFLICT (consumer_group, message_id) DO NOTHING",
    )
    .bind(claim.group)
    .bind(claim.message_id)
    .bind(claim.fingerprint.to_i64())
    .execute(&mut *conn)
    .await?;
    if inserted.rows_affected() == 1 {
        return Ok(Claimed::Fresh);
    }
    let row = sqlx::query("SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2")
        .bind(claim.group)
        .bind(claim.message_id)
        .fetch_one(conn)
        .await?;
    Ok(Claimed::Duplicate(Fingerprint::from_i64(row.try_get(0)?)))
}
