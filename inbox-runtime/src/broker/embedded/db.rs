//! The broker's database: opens or creates it, and checks that the file is a broker's.

use std::time::Duration;

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{sync::Mutex, time::Instant};

use super::{
    connection::{ConnectionGuard, DbConnection, failed},
    limits::{BUSY_TIMEOUT, MAX_VACUUM},
    storage::Storage,
};
use crate::broker::BrokerError;

/// The `application_id` that marks a SQLite file as a broker's; `IBX1` in ASCII.
const APPLICATION_ID: i64 = 0x4942_5831;
/// The version of the schema.
const SCHEMA_VERSION: i64 = 2;

/// The open database: one connection for each kind of work, kept open. A pool pings each connection that is returned,
/// which takes as long as the work; and a database in memory ends with its connection.
#[derive(Debug)]
pub(super) struct Db {
    /// Syncs each commit. The only one in memory.
    durable: DbConnection,
    /// For writes that a power failure may undo, which causes a redelivery.
    relaxed: Option<DbConnection>,
    reader: Option<DbConnection>,
    /// Held while this process writes: a fair queue. SQLite's own lock retries with a growing sleep, so that frequent
    /// writers starve the others.
    write_turn: Mutex<()>,
    /// The random id of the database, a part of each position.
    pub(super) instance: String,
    storage: Storage,
    /// Of the file that was opened; its path may lead to another one by now.
    identity: Option<FileId>,
}

/// A file regardless of its path: device and inode.
type FileId = (u64, u64);

impl Db {
    /// Opens the database at `storage`, or creates it.
    pub(super) async fn open(storage: &Storage) -> Result<Self, BrokerError> {
        let (connection, instance) = open(storage).await?;
        let lazy = |durable| Some(DbConnection::new(storage, durable));
        let (relaxed, reader) = match storage {
            Storage::Memory => (None, None),
            Storage::File { .. } => (lazy(false), lazy(false)),
        };
        Ok(Self {
            durable: DbConnection::open(storage, connection),
            relaxed,
            reader,
            write_turn: Mutex::new(()),
            instance,
            storage: storage.clone(),
            identity: storage
                .path()
                .and_then(|path| std::fs::metadata(path).ok())
                .map(|found| identity(&found)),
        })
    }

    /// Fails if the path doesn't lead to the opened file any more: what is written to an unlinked file is lost.
    pub(super) fn check(&self) -> Result<(), BrokerError> {
        let (Some(path), Some(opened)) = (self.storage.path(), self.identity) else {
            return Ok(());
        };
        let what = match std::fs::metadata(path) {
            Ok(found) if identity(&found) == opened => return Ok(()),
            Ok(_) => "was replaced",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "was deleted or moved",
            // Proves nothing; SQLite reports what it can't do.
            Err(_) => return Ok(()),
        };
        Err(BrokerError::Unavailable {
            message: format!(
                "the embedded broker's {} {what} while this program had it open, so that whatever is written would be lost; put \
                 the file back or restart the program",
                self.storage
            ),
            source: None,
        })
    }

    /// The connection whose commits are synced to the disk.
    pub(super) async fn durable_writer(&self) -> Result<ConnectionGuard<'_>, BrokerError> {
        self.check()?;
        let turn = self.write_turn.lock().await;
        self.durable.lock(Some(turn)).await
    }

    /// The connection whose commits needn't survive a power failure.
    pub(super) async fn relaxed_writer(&self) -> Result<ConnectionGuard<'_>, BrokerError> {
        self.check()?;
        let turn = self.write_turn.lock().await;
        self.relaxed.as_ref().unwrap_or(&self.durable).lock(Some(turn)).await
    }

    /// The connection for reads, which don't wait for writers.
    pub(super) async fn reader(&self) -> Result<ConnectionGuard<'_>, BrokerError> {
        self.check()?;
        self.reader.as_ref().unwrap_or(&self.durable).lock(None).await
    }
}

#[cfg(unix)]
fn identity(found: &std::fs::Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

/// Elsewhere a file that is open can't be deleted or replaced.
#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata) -> FileId {
    (0, 0)
}

async fn open(storage: &Storage) -> Result<(SqliteConnection, String), BrokerError> {
    let options = storage.options(true).create_if_missing(true);
    let deadline = Instant::now() + BUSY_TIMEOUT;
    let mut pause = Duration::from_millis(2);
    loop {
        match try_open(&options, storage).await {
            Ok(opened) => return Ok(opened),
            // SQLite's busy timeout doesn't apply where waiting could deadlock, as in the change to WAL, when several
            // processes create a file at once.
            Err(DbOpenError::Sql(error)) if is_busy(&error) && Instant::now() < deadline => {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            Err(error) => return Err(error.into_broker(storage)),
        }
    }
}

enum DbOpenError {
    Sql(sqlx::Error),
    Refused(String),
}

impl From<sqlx::Error> for DbOpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl DbOpenError {
    fn into_broker(self, storage: &Storage) -> BrokerError {
        match self {
            Self::Sql(error) if code(&error) == Some(SQLITE_NOTADB) => BrokerError::Invalid(format!(
                "the embedded broker can't use {storage}: it is no SQLite database"
            )),
            Self::Sql(error) => failed("open", storage)(error),
            Self::Refused(why) => BrokerError::Invalid(format!("the embedded broker can't use {storage}: {why}")),
        }
    }
}

const SQLITE_BUSY: i32 = 5;
const SQLITE_NOTADB: i32 = 26;

/// The primary result code of SQLite.
fn code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

fn is_busy(error: &sqlx::Error) -> bool {
    code(error) == Some(SQLITE_BUSY)
}

async fn try_open(
    options: &SqliteConnectOptions,
    storage: &Storage,
) -> Result<(SqliteConnection, String), DbOpenError> {
    let mut connection = SqliteConnection::connect_with(options).await?;
    let instance = prepare(&mut connection, storage).await?;
    if matches!(storage, Storage::File { .. }) {
        // Only after the checks: the mode persists in the file.
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
            .fetch_one(&mut connection)
            .await?;
        if mode != "wal" {
            tracing::warn!(place = %storage, mode, "the file system supports no write-ahead log; the embedded broker is slower without");
        }
        allow_shrinking(&mut connection, storage).await?;
    }
    Ok((connection, instance))
}

/// Creates or migrates the tables, and returns the database's id.
async fn prepare(connection: &mut SqliteConnection, storage: &Storage) -> Result<String, DbOpenError> {
    let found = version(connection).await?;
    if found == 0 {
        // Has no effect after the first table, or in a transaction.
        sqlx::query("PRAGMA auto_vacuum = INCREMENTAL")
            .execute(&mut *connection)
            .await?;
    }
    if found < SCHEMA_VERSION {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        // Again, under the lock: another process may have been faster.
        let found = version(&mut tx).await?;
        if found < 1 {
            sqlx::raw_sql(include_str!("schema.sql")).execute(&mut *tx).await?;
            let instance = uuid::Uuid::new_v4().simple().to_string();
            sqlx::query("INSERT INTO broker (instance) VALUES (?)")
                .bind(&instance)
                .execute(&mut *tx)
                .await?;
            tracing::debug!(place = %storage, instance, "created the database of the embedded broker");
        }
        if found < 2 {
            sqlx::raw_sql(include_str!("schema_2.sql")).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    Ok(sqlx::query_scalar("SELECT instance FROM broker")
        .fetch_one(connection)
        .await?)
}

/// The version of the schema, 0 if the database is empty; fails for another program's database.
async fn version(connection: &mut SqliteConnection) -> Result<i64, DbOpenError> {
    // One statement, for a consistent snapshot.
    let (application, version, tables): (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), \
         (SELECT count(*) FROM sqlite_schema)",
    )
    .fetch_one(connection)
    .await?;
    match (application, version) {
        (APPLICATION_ID, 1..=SCHEMA_VERSION) => Ok(version),
        (APPLICATION_ID, _) => Err(DbOpenError::Refused(format!(
            "its tables have version {version} and this program knows version {SCHEMA_VERSION}; \
             update the program or use another file"
        ))),
        (0, 0) if tables == 0 => Ok(0),
        _ => Err(DbOpenError::Refused(
            "it is the SQLite database of another program; the broker needs a file of its own".to_owned(),
        )),
    }
}

/// Enables `incremental_vacuum` for a file of version 1, for which it must be vacuumed once.
async fn allow_shrinking(connection: &mut SqliteConnection, storage: &Storage) -> Result<(), sqlx::Error> {
    let (mode, size): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT auto_vacuum FROM pragma_auto_vacuum), \
         (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)",
    )
    .fetch_one(&mut *connection)
    .await?;
    if mode != 0 {
        return Ok(());
    }
    if size > MAX_VACUUM {
        tracing::info!(
            place = %storage,
            "the file was created by an earlier version and is too large to be vacuumed at the start: it reuses its free space and \
             doesn't shrink; to change that, stop all programs that use it and run `PRAGMA auto_vacuum = 2; VACUUM;` on it"
        );
        return Ok(());
    }
    let vacuumed = sqlx::raw_sql("PRAGMA auto_vacuum = 2; VACUUM")
        .execute(connection)
        .await;
    // Needs disk space for a copy, and exclusive access. The next start retries.
    if let Err(error) = vacuumed {
        tracing::debug!(place = %storage, %error, "the file of an earlier version could not be vacuumed");
    }
    Ok(())
}
