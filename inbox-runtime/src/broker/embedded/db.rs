//! The broker's database: opening it, making it, and identifying what is in the file.

use std::time::Duration;

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{sync::Mutex, time::Instant};

use super::{
    config::{APPLICATION_ID, BUSY_TIMEOUT, Place, REWRITE, SCHEMA_VERSION},
    link::{Held, Link, failed},
};
use crate::broker::BrokerError;

/// The open database: one connection for each kind of work, held for good. A pool would ask each connection whether it
/// lives whenever it comes back, which is as long as the work; and a database in memory ends with its connection.
#[derive(Debug)]
pub(super) struct Db {
    /// For what must be on the disk when it returns; for everything in memory.
    durable: Link,
    /// For writes that a power failure may undo, at the price of a redelivery.
    relaxed: Option<Link>,
    reading: Option<Link>,
    /// Held while this process writes. SQLite's own waiting is a sleep that grows, so that whoever comes often wins and
    /// the others starve; this queue is fair.
    gate: Mutex<()>,
    /// The id that the database was given when it was made.
    pub(super) instance: String,
    place: Place,
    /// The file that was opened, whatever its path leads to by now.
    identity: Option<Identity>,
}

/// What a file is beside its path: its device and its number there.
type Identity = (u64, u64);

impl Db {
    /// Opens the database at `place`, and makes it if it is missing.
    pub(super) async fn open(place: &Place) -> Result<Self, BrokerError> {
        let (connection, instance) = open(place).await?;
        let link = |durable| Some(Link::new(place, durable));
        let (relaxed, reading) = match place {
            Place::Memory => (None, None),
            Place::File { .. } => (link(false), link(false)),
        };
        Ok(Self {
            durable: Link::open(place, connection),
            relaxed,
            reading,
            gate: Mutex::new(()),
            instance,
            place: place.clone(),
            identity: place
                .path()
                .and_then(|path| std::fs::metadata(path).ok())
                .map(|found| identity(&found)),
        })
    }

    /// Whether the path still leads to the file that was opened: what is written to a file without a name is lost.
    pub(super) fn check(&self) -> Result<(), BrokerError> {
        let (Some(path), Some(opened)) = (self.place.path(), self.identity) else {
            return Ok(());
        };
        let what = match std::fs::metadata(path) {
            Ok(found) if identity(&found) == opened => return Ok(()),
            Ok(_) => "was replaced",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "was deleted or moved",
            // That it can't be looked at is no proof; SQLite says itself what it can't do.
            Err(_) => return Ok(()),
        };
        Err(BrokerError::Unavailable {
            message: format!(
                "the embedded broker's {} {what} while this program had it open, so that whatever is written would be lost; put \
                 the file back or restart the program",
                self.place
            ),
            source: None,
        })
    }

    /// The connection whose writes are on the disk when they return.
    pub(super) async fn durable(&self) -> Result<Held<'_>, BrokerError> {
        self.check()?;
        let gate = self.gate.lock().await;
        self.durable.hold(Some(gate)).await
    }

    /// The connection whose writes needn't survive a power failure.
    pub(super) async fn relaxed(&self) -> Result<Held<'_>, BrokerError> {
        self.check()?;
        let gate = self.gate.lock().await;
        self.relaxed.as_ref().unwrap_or(&self.durable).hold(Some(gate)).await
    }

    /// The connection that reads, which waits for no writer.
    pub(super) async fn reading(&self) -> Result<Held<'_>, BrokerError> {
        self.check()?;
        self.reading.as_ref().unwrap_or(&self.durable).hold(None).await
    }
}

#[cfg(unix)]
fn identity(found: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

/// Elsewhere a file that is open can't be deleted or replaced.
#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata) -> Identity {
    (0, 0)
}

async fn open(place: &Place) -> Result<(SqliteConnection, String), BrokerError> {
    let options = place.options(true).create_if_missing(true);
    let deadline = Instant::now() + BUSY_TIMEOUT;
    let mut pause = Duration::from_millis(2);
    loop {
        match try_open(&options, place).await {
            Ok(opened) => return Ok(opened),
            // SQLite doesn't wait where waiting could be a deadlock, as in the change to WAL; several processes that
            // open a new file at once do get there.
            Err(OpenError::Sql(error)) if is_busy(&error) && Instant::now() < deadline => {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            Err(error) => return Err(error.into_broker(place)),
        }
    }
}

enum OpenError {
    Sql(sqlx::Error),
    Refused(String),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl OpenError {
    fn into_broker(self, place: &Place) -> BrokerError {
        match self {
            Self::Sql(error) if code(&error) == Some(SQLITE_NOTADB) => BrokerError::Invalid(format!(
                "the embedded broker can't use {place}: it is no SQLite database"
            )),
            Self::Sql(error) => failed("open", place)(error),
            Self::Refused(why) => BrokerError::Invalid(format!("the embedded broker can't use {place}: {why}")),
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

async fn try_open(options: &SqliteConnectOptions, place: &Place) -> Result<(SqliteConnection, String), OpenError> {
    let mut connection = SqliteConnection::connect_with(options).await?;
    let instance = prepare(&mut connection, place).await?;
    if matches!(place, Place::File { .. }) {
        // Not before the file is known to be ours: the mode stays with it.
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
            .fetch_one(&mut connection)
            .await?;
        if mode != "wal" {
            tracing::warn!(%place, mode, "the file system allows no write-ahead log; the embedded broker is slower without");
        }
        allow_shrinking(&mut connection, place).await?;
    }
    Ok((connection, instance))
}

/// Makes the tables if there is nothing yet, brings those of an earlier version up to date, and returns the database's id.
async fn prepare(connection: &mut SqliteConnection, place: &Place) -> Result<String, OpenError> {
    let found = version(connection).await?;
    if found == 0 {
        // Before the first table is made, and not in a transaction, or it has no effect.
        sqlx::query("PRAGMA auto_vacuum = INCREMENTAL")
            .execute(&mut *connection)
            .await?;
    }
    if found < SCHEMA_VERSION {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        // Again, behind the lock: another process may have been faster.
        let found = version(&mut tx).await?;
        if found < 1 {
            sqlx::raw_sql(include_str!("schema.sql")).execute(&mut *tx).await?;
            let instance = uuid::Uuid::new_v4().simple().to_string();
            sqlx::query("INSERT INTO broker (instance) VALUES (?)")
                .bind(&instance)
                .execute(&mut *tx)
                .await?;
            tracing::debug!(%place, instance, "made the database of the embedded broker");
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

/// The version of our tables, 0 if there are none yet; refuses a database that is somebody else's.
async fn version(connection: &mut SqliteConnection) -> Result<i64, OpenError> {
    // One statement, so that all three are of one moment.
    let (application, version, tables): (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), \
         (SELECT count(*) FROM sqlite_schema)",
    )
    .fetch_one(connection)
    .await?;
    match (application, version) {
        (APPLICATION_ID, 1..=SCHEMA_VERSION) => Ok(version),
        (APPLICATION_ID, _) => Err(OpenError::Refused(format!(
            "its tables have version {version} and this program knows version {SCHEMA_VERSION}; \
             update the program or use another file"
        ))),
        (0, 0) if tables == 0 => Ok(0),
        _ => Err(OpenError::Refused(
            "it is the SQLite database of another program; the broker needs a file of its own".to_owned(),
        )),
    }
}

/// Lets a file of version 1 give back its free pages, for which SQLite writes it anew once.
async fn allow_shrinking(connection: &mut SqliteConnection, place: &Place) -> Result<(), sqlx::Error> {
    let (mode, size): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT auto_vacuum FROM pragma_auto_vacuum), \
         (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)",
    )
    .fetch_one(&mut *connection)
    .await?;
    if mode != 0 {
        return Ok(());
    }
    if size > REWRITE {
        tracing::info!(
            %place,
            "the file was made by an earlier version and is too large to be written anew at the start: it uses its free \
             space again and doesn't shrink; to change that, stop all programs that use it and run `PRAGMA auto_vacuum = 2; \
             VACUUM;` on it"
        );
        return Ok(());
    }
    let rewritten = sqlx::raw_sql("PRAGMA auto_vacuum = 2; VACUUM")
        .execute(connection)
        .await;
    // It needs room for a copy, and nobody else at work. The next start tries again.
    if let Err(error) = rewritten {
        tracing::debug!(%place, %error, "the file of an earlier version could not be written anew");
    }
    Ok(())
}
