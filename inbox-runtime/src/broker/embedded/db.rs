//! The broker's database: opening and making it, and the connections to it.

use std::time::Duration;

use sqlx::{
    Connection, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::{sync::Mutex, time::Instant};

use super::config::{APPLICATION_ID, BUSY_TIMEOUT, Place, RELAXED_CONNECTIONS, SCHEMA_VERSION};
use crate::broker::BrokerError;

/// The open database.
#[derive(Debug)]
pub(super) struct Db {
    /// For what must be on the disk when it returns.
    pub(super) durable: SqlitePool,
    /// For reads, and for what a power failure may undo at the price of a redelivery.
    pub(super) relaxed: SqlitePool,
    /// Held while this process writes. SQLite's own waiting is a sleep that grows, so that whoever comes often wins and
    /// the others starve; this queue is fair.
    pub(super) gate: Mutex<()>,
    /// The id that the database was given when it was made.
    pub(super) instance: String,
}

impl Db {
    /// Opens the database at `place`, and makes it if it is missing.
    pub(super) async fn open(place: &Place) -> Result<Self, BrokerError> {
        match place {
            Place::Memory => Self::open_memory(place).await,
            Place::File { .. } => Self::open_file(place).await,
        }
    }

    async fn open_memory(place: &Place) -> Result<Self, BrokerError> {
        // The database lives as long as its one connection.
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .min_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(place.options(false));
        let mut connection = pool.acquire().await.map_err(failed("open", place))?;
        let instance = prepare(&mut connection, place)
            .await
            .map_err(|e| e.into_broker(place))?;
        drop(connection);
        Ok(Self {
            durable: pool.clone(),
            relaxed: pool,
            gate: Mutex::new(()),
            instance,
        })
    }

    async fn open_file(place: &Place) -> Result<Self, BrokerError> {
        let options = place.options(true).create_if_missing(true);
        let deadline = Instant::now() + BUSY_TIMEOUT;
        let mut pause = Duration::from_millis(2);
        let instance = loop {
            match prepare_file(&options, place).await {
                Ok(instance) => break instance,
                // SQLite doesn't wait where waiting could be a deadlock, as in the change to WAL; several processes that
                // open a new file at once do get there.
                Err(OpenError::Sql(error)) if is_busy(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
                Err(error) => return Err(error.into_broker(place)),
            }
        };
        let pool = |connections, durable| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .test_before_acquire(false)
                .connect_lazy_with(place.options(durable))
        };
        Ok(Self {
            durable: pool(1, true),
            relaxed: pool(RELAXED_CONNECTIONS, false),
            gate: Mutex::new(()),
            instance,
        })
    }
}

/// What to say when doing `what` failed, for `map_err`.
pub(super) fn failed<'a>(what: &'a str, place: &'a Place) -> impl FnOnce(sqlx::Error) -> BrokerError + 'a {
    move |error| BrokerError::unavailable(format!("could not {what} the embedded broker ({place})"), error)
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

async fn prepare_file(options: &SqliteConnectOptions, place: &Place) -> Result<String, OpenError> {
    let mut connection = SqliteConnection::connect_with(options).await?;
    let instance = prepare(&mut connection, place).await?;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
        .fetch_one(&mut connection)
        .await?;
    if mode != "wal" {
        tracing::warn!(%place, mode, "the file system allows no write-ahead log; the embedded broker is slower without");
    }
    connection.close().await?;
    Ok(instance)
}

/// Makes the tables if there is nothing yet, and returns the database's id.
async fn prepare(connection: &mut SqliteConnection, place: &Place) -> Result<String, OpenError> {
    if !has_tables(connection).await? {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        // Again, behind the lock: another process may have been faster.
        if !has_tables(&mut tx).await? {
            sqlx::raw_sql(include_str!("schema.sql")).execute(&mut *tx).await?;
            let instance = uuid::Uuid::new_v4().simple().to_string();
            sqlx::query("INSERT INTO broker (instance) VALUES (?)")
                .bind(&instance)
                .execute(&mut *tx)
                .await?;
            tracing::debug!(%place, instance, "made the database of the embedded broker");
        }
        tx.commit().await?;
    }
    Ok(sqlx::query_scalar("SELECT instance FROM broker")
        .fetch_one(connection)
        .await?)
}

/// Whether our tables are there; refuses a database that is somebody else's.
async fn has_tables(connection: &mut SqliteConnection) -> Result<bool, OpenError> {
    // One statement, so that all three are of one moment.
    let (application, version, tables): (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), \
         (SELECT count(*) FROM sqlite_schema)",
    )
    .fetch_one(connection)
    .await?;
    match (application, version) {
        (APPLICATION_ID, SCHEMA_VERSION) => Ok(true),
        (APPLICATION_ID, _) => Err(OpenError::Refused(format!(
            "its tables have version {version} and this program knows version {SCHEMA_VERSION}; \
             update the program or use another file"
        ))),
        (0, 0) if tables == 0 => Ok(false),
        _ => Err(OpenError::Refused(
            "it is the SQLite database of another program; the broker needs a file of its own".to_owned(),
        )),
    }
}
