//! SQLite: one writer at a time, and hooks that let nobody but the runtime end its transaction.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use sqlx::{
    Row, Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tokio::time::{Instant, timeout};

mod claim;
mod file;
mod guard;
mod migrate;
mod reach;
mod records;
mod shape;
mod state;

pub use claim::SqliteSession;
use file::{SharedFile, Turn};
use state::PoolState;

use super::{
    Claim, ClaimError, Claimed, ConnectError, FaultClass, InboxConnection, IntoStore, Records, Store, StoreError,
    StoreSettings,
    transaction::{self, TxConnection},
};
use crate::{
    file::resolve,
    outcome::DatabaseFault,
    url::{known_parameters, no_login},
};

impl InboxConnection for SqliteConnection {
    type Store = SqliteStore;
}

/// How long what ends a transaction may wait for a statement that a handler left running, and a connection's settings for
/// being set back. Past it the connection is closed.
const END_WAIT: Duration = Duration::from_secs(1);

/// How long a commit may wait for the disk. Past it its outcome is unknown.
const COMMIT_WAIT: Duration = Duration::from_secs(10);

/// An inbox in a SQLite file.
///
/// It waits for the file's write lock as long as the pool's `busy_timeout` says, which a pool that the runtime makes itself
/// has from `lock_wait`, and at most a second at a time: then health says that somebody else has the lock.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
    file: Arc<SharedFile>,
    /// The settings of its connections, as the first of them had them.
    state: Arc<OnceLock<PoolState>>,
}

impl SqliteStore {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        let file = SharedFile::of(resolve(pool.connect_options().get_filename()));
        let state = Arc::default();
        Self { pool, file, state }
    }

    /// Waits for its turn to write, then for a connection.
    async fn writer(&self) -> Result<Writer, StoreError> {
        let turn = self.file.turn().await?;
        let mut conn = self.acquire().await?;
        // Until its settings are set back.
        conn.taint();
        self.state(&mut conn)
            .await?
            .prepare(&mut conn)
            .await
            .map_err(unavailable)?;
        Ok(Writer {
            conn,
            store: self.clone(),
            _turn: turn,
        })
    }

    /// The settings of the pool's connections, of which this is one that nobody else has had.
    async fn state(&self, conn: &mut SqliteConnection) -> Result<&PoolState, StoreError> {
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        let state = PoolState::of(conn).await.map_err(unavailable)?;
        Ok(self.state.get_or_init(|| state))
    }

    /// Whether the file can be written to by everybody who wants little: a transaction that needs new pages and is really
    /// written to the disk, after which nothing of it is there.
    ///
    /// # Errors
    ///
    /// When it can't: the disk is full, the file is damaged, read-only, or not the one that was opened.
    async fn probe_write(&self) -> Result<(), StoreError> {
        /// 16 pages of the usual size: less is no room for any handler.
        const BYTES: usize = 64 * 1024;
        let mut writer = self.writer().await?;
        writer.begin().await?;
        for sql in [
            "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('', $1, 0)",
            "DELETE FROM inbox_events WHERE consumer_group = '' AND message_id = $1",
        ] {
            let filler = "x".repeat(BYTES);
            sqlx::query(sql)
                .bind(filler)
                .execute(&mut *writer.conn)
                .await
                .map_err(trouble)?;
        }
        writer.commit().await
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
        Some(self.file.path().to_owned())
    }
}

impl SqliteStore {
    async fn reader(&self) -> Result<Reader, StoreError> {
        let conn = self.acquire().await?;
        Ok(Reader { conn })
    }

    async fn acquire(&self) -> Result<TxConnection<Sqlite>, StoreError> {
        let conn = self.pool.acquire().await.map(TxConnection::new).map_err(unavailable)?;
        self.file.check()?;
        Ok(conn)
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

/// A connection whose turn it is to write. It is closed on drop, unless it was [given back](Self::give_back).
#[derive(Debug)]
struct Writer {
    conn: TxConnection<Sqlite>,
    store: SqliteStore,
    _turn: Turn,
}

impl Writer {
    async fn begin(&mut self) -> Result<(), StoreError> {
        let file = &self.store.file;
        let tried = Instant::now();
        // IMMEDIATE: a transaction that becomes a writer late fails at once, whatever the busy timeout is.
        match self.conn.begin("BEGIN IMMEDIATE").await {
            Ok(()) => file.unlocked(),
            Err(error) if is_busy(&error) => return Err(file.locked(tried)),
            Err(error) => return Err(unavailable(error)),
        }
        self.check(false)
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        self.end().await.map_err(trouble)?;
        self.check(true)?;
        self.give_back().await;
        Ok(())
    }

    /// Commits.
    async fn end(&mut self) -> sqlx::Result<()> {
        self.conn.commit().await?;
        self.conn.taint();
        Ok(())
    }

    /// Whether what is written, or has just been, arrives in the file.
    fn check(&self, written: bool) -> Result<(), StoreError> {
        self.store.file.check()?;
        if self.store.state.get().is_some_and(PoolState::has_log) {
            self.store.file.check_log(written)?;
        }
        Ok(())
    }

    /// Whether the connection is as the runtime has made it, after a handler has had it.
    async fn is_kept(&mut self) -> bool {
        match self.store.state.get() {
            Some(state) => state.is_kept_by(&mut self.conn).await.unwrap_or(false),
            None => false,
        }
    }

    /// Gives the connection back to the pool as it was; where that fails it is closed.
    async fn give_back(mut self) {
        let Some(state) = self.store.state.get() else { return };
        if let Ok(Ok(())) = timeout(END_WAIT, state.restore(&mut self.conn)).await {
            self.conn.clean();
        }
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

    fn at(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        let options = options(url)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(settings.pool_size)
            .connect_lazy_with(options.busy_timeout(settings.lock_wait));
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

    fn classify(&self, fault: &DatabaseFault) -> FaultClass {
        let Some(code) = fault.code() else {
            return FaultClass::Suspect;
        };
        match code.parse::<u32>().map(|code| code & 0xff) {
            // BUSY and LOCKED (of a database that the handler has attached, since it has the lock of its own), NOMEM, IOERR,
            // CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB, and READONLY.
            Ok(5 | 6 | 7 | 8 | 10 | 11 | 13 | 14 | 15 | 26) => FaultClass::Suspect,
            _ if fault.is_deployment() => FaultClass::Deployment,
            _ => FaultClass::Handler,
        }
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.probe_write().await
    }
}

impl IntoStore for SqlitePool {
    type Store = SqliteStore;

    fn into_store(self, _settings: StoreSettings) -> SqliteStore {
        SqliteStore::new(self)
    }
}

/// The options of a URL, whose error has nothing of it but the names of parameters.
fn options(url: &str) -> Result<SqliteConnectOptions, ConnectError> {
    no_login(url).map_err(|why| ConnectError::Url(why.into()))?;
    let known = |name: &str| matches!(name, "mode" | "cache" | "immutable" | "vfs");
    let (url, unknown) = known_parameters(url, known).map_err(|why| ConnectError::Url(why.into()))?;
    if !unknown.is_empty() {
        let unknown = unknown.join("`, `");
        return Err(ConnectError::Url(
            format!("it has the parameters `{unknown}`, which there are not; there are mode, cache, immutable and vfs")
                .into(),
        ));
    }
    url.parse().map_err(|error| ConnectError::Url(Box::new(error)))
}

fn unavailable(error: sqlx::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// Sorts an error of one of our own statements. A lock is never about one message, since it is one of the whole file.
fn trouble(error: sqlx::Error) -> StoreError {
    unavailable(error)
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
        let store = SqliteStore::at(&url, settings).expect("a database");
        assert_eq!(store.pool.options().get_max_connections(), 3);
    }
}
