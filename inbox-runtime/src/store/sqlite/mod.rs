//! SQLite: one writer at a time, and hooks that let nobody but the runtime end its transaction.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use sqlx::{
    Row, Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

mod claim;
mod guard;
mod migrate;
mod records;

pub use claim::SqliteSession;

use super::{
    Claim, ClaimError, Claimed, ConnectError, DatabaseFaultRef, FaultClass, InboxConnection, IntoStore, Records, Store,
    StoreError, StoreSettings,
    transaction::{self, TxConnection},
};
use crate::{file::resolve, registry::Registration};

inventory::collect!(Registration<SqliteStore>);

impl InboxConnection for SqliteConnection {
    type Store = SqliteStore;
}

/// An inbox in a SQLite file.
///
/// The wait for the file's write lock is the pool's `busy_timeout`, which a pool that the runtime makes itself has from
/// `lock_wait`.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
    /// SQLite has one writer; without a fair queue before it some workers would wait while others go again and again.
    gate: Arc<AsyncMutex<()>>,
}

impl SqliteStore {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        let gate = gate_of(&resolve(pool.connect_options().get_filename()));
        Self { pool, gate }
    }

    /// Waits for its turn to write, then for a connection.
    async fn writer(&self) -> Result<Writer, StoreError> {
        let turn = Arc::new(self.gate.clone().lock_owned().await);
        self.writer_in(turn).await
    }

    /// A connection for somebody whose turn it is.
    async fn writer_in(&self, turn: Turn) -> Result<Writer, StoreError> {
        let mut conn = self.acquire().await?;
        // What is acknowledged must survive a power failure; a pool may have been set to less.
        sqlx::raw_sql("PRAGMA synchronous = FULL")
            .execute(&mut *conn)
            .await
            .map_err(unavailable)?;
        Ok(Writer { conn, turn })
    }

    async fn describe(&self) -> Result<String, StoreError> {
        let row = sqlx::query("SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode)")
            .fetch_one(&self.pool)
            .await
            .map_err(unavailable)?;
        let (version, journal): (String, String) = row
            .try_get(0)
            .and_then(|version| Ok((version, row.try_get(1)?)))
            .map_err(unavailable)?;
        Ok(format!("SQLite {version} (journal_mode {journal})"))
    }

    #[allow(clippy::unnecessary_wraps, reason = "of the shape that other databases have")]
    fn file(&self) -> Option<PathBuf> {
        Some(resolve(self.pool.connect_options().get_filename()))
    }
}

impl SqliteStore {
    async fn reader(&self) -> Result<Reader, StoreError> {
        let conn = self.acquire().await?;
        Ok(Reader { conn })
    }

    async fn acquire(&self) -> Result<TxConnection<Sqlite>, StoreError> {
        self.pool.acquire().await.map(TxConnection::new).map_err(unavailable)
    }
}

/// A connection to read from.
#[derive(Debug)]
struct Reader {
    conn: TxConnection<Sqlite>,
}

impl Reader {
    #[allow(clippy::unused_async, reason = "of the shape that other databases have")]
    async fn done(self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The right to write, which ends when its last copy is dropped.
type Turn = Arc<OwnedMutexGuard<()>>;

/// A connection whose turn it is to write.
#[derive(Debug)]
struct Writer {
    conn: TxConnection<Sqlite>,
    turn: Turn,
}

impl Writer {
    async fn begin(&mut self) -> Result<(), StoreError> {
        self.conn.begin("BEGIN IMMEDIATE").await.map_err(trouble)
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        self.conn.commit().await.map_err(trouble)
    }
}

impl Store for SqliteStore {
    type Conn = SqliteConnection;
    type Session = SqliteSession;

    const NAME: &'static str = "SQLite";
    const VARIABLE: &'static str = "INBOX_SQLITE_URL";
    const SCHEMES: &'static [&'static str] = &["sqlite"];
    const EXAMPLE_URL: &'static str = "sqlite://app.db";
    const TRANSACTIONAL: bool = true;

    fn registrations() -> Vec<&'static Registration<Self>> {
        inventory::iter::<Registration<Self>>.into_iter().collect()
    }

    async fn connect(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        let options: SqliteConnectOptions = url.parse().map_err(|error| ConnectError::Url(Box::new(error)))?;
        let pool = SqlitePoolOptions::new()
            .max_connections(settings.pool_size)
            .connect_with(options.create_if_missing(true).busy_timeout(settings.lock_wait))
            .await
            .map_err(|error| ConnectError::Unavailable(Box::new(error)))?;
        Ok(Self::new(pool))
    }

    async fn session(&self) -> Result<SqliteSession, StoreError> {
        // A session waits for its turn in `begin`; that it could be opened is shown by a look at the database.
        sqlx::query("SELECT 1").execute(&self.pool).await.map_err(unavailable)?;
        Ok(SqliteSession::new(self.clone()))
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(records::SqliteRecords::new(self.clone()))
    }

    async fn claim_on(conn: &mut SqliteConnection, claim: &Claim<'_>) -> Result<Claimed, ClaimError> {
        if transaction::depth::<Sqlite>(conn) == 0 {
            return Err(ClaimError::NoTransaction);
        }
        Ok(claim::insert(conn, claim).await?)
    }

    fn classify(&self, fault: &DatabaseFaultRef<'_>) -> FaultClass {
        if fault.is_connection() {
            return FaultClass::Unavailable;
        }
        match fault
            .code()
            .and_then(|code| code.parse::<u32>().ok())
            .map(|code| code & 0xff)
        {
            // BUSY, LOCKED, NOMEM, IOERR, CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB, and READONLY: a file that can't be
            // written is no message's fault.
            Some(5 | 6 | 7 | 8 | 10 | 11 | 13 | 14 | 15 | 26) => FaultClass::Unavailable,
            _ => FaultClass::Handler,
        }
    }
}

impl IntoStore for SqlitePool {
    type Store = SqliteStore;

    fn into_store(self, _settings: StoreSettings) -> SqliteStore {
        SqliteStore::new(self)
    }
}

/// The gate of a file: one for all pools of this process that write to it.
fn gate_of(file: &Path) -> Arc<AsyncMutex<()>> {
    static GATES: LazyLock<Mutex<HashMap<PathBuf, Weak<AsyncMutex<()>>>>> = LazyLock::new(Mutex::default);
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    gates.retain(|_, gate| gate.strong_count() > 0);
    if let Some(gate) = gates.get(file).and_then(Weak::upgrade) {
        return gate;
    }
    let gate = Arc::new(AsyncMutex::new(()));
    gates.insert(file.to_owned(), Arc::downgrade(&gate));
    gate
}

fn unavailable(error: sqlx::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// Sorts an error of one of our own statements.
fn trouble(error: sqlx::Error) -> StoreError {
    if is_busy(&error) {
        StoreError::Locked(Box::new(error))
    } else {
        unavailable(error)
    }
}

/// Whether somebody else has the lock: BUSY and LOCKED.
fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(5 | 6))
}

/// SQLite's result code, without what its extended part adds.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let code = error.as_database_error()?.code()?;
    Some(code.parse::<u32>().ok()? & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pool_of_ones_own_is_as_large_as_was_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("app.db").display());
        let settings = StoreSettings {
            pool_size: 3,
            ..StoreSettings::default()
        };
        let store = SqliteStore::connect(&url, settings).await.expect("a database");
        assert_eq!(store.pool.options().get_max_connections(), 3);
    }
}
