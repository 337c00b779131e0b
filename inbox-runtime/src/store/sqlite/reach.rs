//! The first contact with a file: whether it is there and a database, whether waiting helps where it isn't, and whether the
//! inbox can write to it.

use std::{path::Path, time::Duration};

use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::{SqliteStore, is_busy, primary_code, trouble};
use crate::store::{ConnectError, StoreError};

/// How long a file may take to be opened and looked into.
const ANSWER: Duration = Duration::from_secs(5);

/// `SQLITE_CANTOPEN`.
const CANTOPEN: u32 = 14;

impl SqliteStore {
    /// Opens the file beside the pool, which would try for its whole `acquire_timeout`.
    pub(super) async fn reach(&self) -> Result<(), ConnectError> {
        let options = self.pool.connect_options();
        let file = options.get_filename();
        if self.pool.is_closed() {
            return Err(refused(file, sqlx::Error::PoolClosed));
        }
        let opened = tokio::time::timeout(ANSWER, async {
            let mut conn = options.connect().await?;
            sqlx::query("SELECT count(*) FROM sqlite_master")
                .execute(&mut conn)
                .await?;
            conn.close().await
        });
        match opened.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if primary_code(&error) != Some(CANTOPEN) && passes(&error) => Err(unreachable(file, error)),
            Ok(Err(error)) => Err(refused(file, error)),
            Err(_) => Err(unreachable(file, format!("no answer within {ANSWER:?}"))),
        }
    }

    /// Writes a row of a message that nobody has, and rolls it back. Beside the pool and the queue of writers: whoever has
    /// the file's lock, for minutes perhaps, shows that it can be written to.
    pub(super) async fn try_write(&self) -> Result<(), StoreError> {
        let options = (*self.pool.connect_options()).clone();
        let mut conn = options.busy_timeout(Duration::ZERO).connect().await.map_err(trouble)?;
        let tried = insert_and_roll_back(&mut conn).await;
        let _ = conn.close().await;
        match tried {
            Ok(1) => Ok(()),
            Ok(_) => Err(StoreError::Unavailable(
                "an INSERT into inbox_events inserts nothing, so every message would be taken for a duplicate; look at the \
                 table's triggers"
                    .into(),
            )),
            Err(error) if is_busy(&error) => Ok(()),
            Err(error) => Err(trouble(error)),
        }
    }
}

/// How many rows were inserted. What isn't rolled back is so when the connection closes.
async fn insert_and_roll_back(conn: &mut SqliteConnection) -> sqlx::Result<u64> {
    // A look needs no lock: that the tables are missing is seen behind a writer, too.
    sqlx::query("SELECT 1 FROM inbox_events LIMIT 1")
        .execute(&mut *conn)
        .await?;
    let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
    let inserted =
        sqlx::query("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('inbox', $1, 0)")
            .bind(format!("tried at the start {}", uuid::Uuid::new_v4()))
            .execute(&mut *transaction)
            .await?;
    transaction.rollback().await?;
    Ok(inserted.rows_affected())
}

/// Whether an error at the start may pass by itself.
pub(super) fn passes(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Configuration(_) | sqlx::Error::PoolClosed => false,
        // BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL, PROTOCOL, and CANTOPEN of a journal beside the file. Not ERROR, CORRUPT
        // and NOTADB.
        sqlx::Error::Database(_) => matches!(primary_code(error), Some(5 | 6 | 7 | 8 | 10 | 13 | 14 | 15)),
        _ => true,
    }
}

fn refused(file: &Path, error: sqlx::Error) -> ConnectError {
    let shown = file.display();
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let message = match folder.filter(|folder| !folder.exists()) {
        Some(folder) => format!(
            "the SQLite file {shown} can't be opened: its folder {} does not exist",
            folder.display()
        ),
        None if !file.exists() => format!(
            "the SQLite file {shown} does not exist; write sqlite://{shown}?mode=rwc to have it made, or correct the name"
        ),
        None => format!(
            "the SQLite file {shown} can't be used, and waiting doesn't help (this program must be able to read and write it \
             and its folder, and it must be a SQLite database): {error}"
        ),
    };
    ConnectError::Refused {
        message,
        source: Box::new(error),
    }
}

fn unreachable(file: &Path, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectError {
    let source = cause.into();
    ConnectError::Unavailable {
        message: format!("the SQLite file {} can't be used: {source}", file.display()),
        source,
    }
}
