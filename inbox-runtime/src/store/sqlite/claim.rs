//! The session of a worker on SQLite: begin, claim, seal, commit.

use std::time::Duration;

use sqlx::{Connection, Row, Sqlite, SqliteConnection};

use super::{SqliteStore, Turn, Writer, guard::Guard, primary_code, trouble, unavailable};
use crate::{
    failpoint::failpoint,
    store::{AbandonError, Claim, Claimed, Fingerprint, FinishError, Following, Session, StoreError, transaction},
};

/// How long a rollback may wait for a statement that a dropped handler left running.
const ROLLBACK_WAIT: Duration = Duration::from_secs(10);

/// A worker's hold on the database. It keeps neither a connection nor its turn to write between two messages.
#[derive(Debug)]
pub struct SqliteSession {
    store: SqliteStore,
    /// Its turn, between a probe and the transaction for which it was made.
    turn: Option<Turn>,
    open: Option<Open>,
}

/// An open transaction. Dropped, its connection is closed, which rolls back; a statement that still runs is stopped.
#[derive(Debug)]
struct Open {
    writer: Writer,
    guard: Guard,
    ended: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.ended {
            self.guard.stop();
            self.writer.conn.taint();
        }
    }
}

impl SqliteSession {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self {
            store,
            turn: None,
            open: None,
        }
    }

    /// Opens a transaction.
    async fn open(&mut self) -> Result<&mut Open, StoreError> {
        let mut writer = match self.turn.take() {
            Some(turn) => self.store.writer_in(turn).await?,
            None => self.store.writer().await?,
        };
        let guard = Guard::install(&mut writer.conn).await.map_err(unavailable)?;
        // IMMEDIATE: a transaction that becomes a writer late fails at once, whatever the busy timeout is.
        writer.conn.begin("BEGIN IMMEDIATE").await.map_err(trouble)?;
        guard.arm();
        Ok(self.open.insert(Open {
            writer,
            guard,
            ended: false,
        }))
    }

    fn take_open(&mut self) -> Result<Open, sqlx::Error> {
        self.open.take().ok_or(sqlx::Error::WorkerCrashed)
    }
}

impl Open {
    /// Shows that the transaction is ours and nobody else's, and that nothing is open inside it.
    async fn seal(&mut self) -> Result<(), FinishError> {
        // A nested transaction that was dropped is rolled back by the connection's thread: wait until it has been.
        self.writer.conn.ping().await.map_err(lost)?;
        let depth = transaction::depth::<Sqlite>(&self.writer.conn);
        self.guard
            .ending()
            .map_err(|text| FinishError::Broken(text.to_owned()))?;
        if depth == 1 {
            Ok(())
        } else {
            Err(FinishError::Broken(
                "the handler left a nested transaction open; commit it, roll it back or let it drop".to_owned(),
            ))
        }
    }

    /// The transaction is over and the connection is clean.
    fn give_back(mut self) {
        self.ended = true;
        self.guard.disarm();
    }
}

fn lost(error: sqlx::Error) -> FinishError {
    FinishError::Lost(format!("the outcome of the commit is unknown: {error}"))
}

impl Session for SqliteSession {
    type Conn = SqliteConnection;

    async fn probe(&mut self) -> Result<(), StoreError> {
        let turn = {
            let open = self.open().await?;
            // A table is read too: BEGIN alone doesn't look at what is in the file.
            sqlx::query("SELECT 1 FROM inbox_events LIMIT 1")
                .fetch_optional(&mut *open.writer.conn)
                .await
                .map_err(trouble)?;
            open.writer.turn.clone()
        };
        self.discard().await?;
        // Nobody comes in between: the message is acknowledged now, and would be lost if the file was locked then.
        self.turn = Some(turn);
        Ok(())
    }

    async fn begin(&mut self, claim: Option<&Claim<'_>>) -> Result<Claimed, StoreError> {
        let open = self.open().await?;
        failpoint!("after_begin");
        let Some(claim) = claim else {
            return Ok(Claimed::Fresh);
        };
        let claimed = insert(&mut open.writer.conn, claim).await.map_err(trouble)?;
        failpoint!("after_claim");
        Ok(claimed)
    }

    fn conn(&mut self) -> &mut SqliteConnection {
        match &mut self.open {
            Some(open) => &mut open.writer.conn,
            None => unreachable!("the pipeline uses the connection between begin and finish only"),
        }
    }

    async fn finish(&mut self, _following: Following<'_>) -> Result<(), FinishError> {
        let mut open = self.take_open().map_err(lost)?;
        open.seal().await?;
        failpoint!("before_commit");
        match open.writer.conn.commit().await {
            Ok(()) => {
                open.give_back();
                Ok(())
            }
            // A deferred constraint: the transaction is still open, and is rolled back when the connection closes.
            Err(error) if primary_code(&error) == Some(19) => Err(FinishError::Refused(error)),
            Err(error) => Err(lost(error)),
        }
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        let rollback = async {
            open.guard
                .abandoning()
                .map_err(|text| AbandonError::Broken(text.to_owned()))?;
            // A statement that a dropped handler left running is stopped: wait until it has been.
            open.writer
                .conn
                .ping()
                .await
                .map_err(|error| AbandonError::Lost(error.to_string()))?;
            if !open.guard.abandoned() {
                return Ok(false);
            }
            // Nested transactions are rolled back with the outer one: the rollback of each takes one off the count.
            open.writer
                .conn
                .rollback()
                .await
                .map_err(|error| AbandonError::Lost(error.to_string()))?;
            Ok(true)
        };
        match tokio::time::timeout(ROLLBACK_WAIT, rollback).await {
            Ok(result) => {
                if result? {
                    open.give_back();
                }
                Ok(())
            }
            // Whatever still runs on the connection ends with it.
            Err(_) => Ok(()),
        }
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        self.abandon().await.map_err(|error| match error {
            AbandonError::Lost(error) => StoreError::Unavailable(error.into()),
            AbandonError::Broken(how) => StoreError::Unavailable(how.into()),
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
