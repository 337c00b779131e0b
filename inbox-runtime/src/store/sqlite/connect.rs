//! The first connection: whether the file exists and is a database, and whether waiting helps where it isn't.

use std::{path::Path, time::Duration};

use sqlx::{ConnectOptions, Connection};

use super::{errors, pool::SqliteStore};
use crate::store::ConnectError;

/// How long opening the file and a first read may take.
const ANSWER: Duration = Duration::from_secs(5);

impl SqliteStore {
    /// Opens the file beside the pool, which would retry for its whole `acquire_timeout`.
    pub(super) async fn open_once(&self) -> Result<(), ConnectError> {
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
            Ok(Err(error)) if errors::is_transient(&error) && !errors::cannot_open(&error) => {
                Err(unavailable(file, error))
            }
            Ok(Err(error)) => Err(refused(file, error)),
            Err(_) => Err(unavailable(file, format!("no answer within {ANSWER:?}"))),
        }
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

fn unavailable(file: &Path, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectError {
    let source = cause.into();
    ConnectError::Unavailable {
        message: format!("the SQLite file {} can't be used: {source}", file.display()),
        source,
    }
}
