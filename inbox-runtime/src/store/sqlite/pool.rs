//! The store itself: a pool of connections to one file, of which one at a time may write.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use sqlx::{Sqlite, SqliteConnection, SqlitePool};
use tokio::time::{Instant, timeout};

use super::{
    errors::{self, own_statement, unavailable},
    file::{SharedFile, WriteTurn},
    settings::ConnectionSettings,
};
use crate::{
    file::resolve,
    store::{StoreError, transaction::TxConnection},
};

/// How long a statement that a handler left running may delay the end of a transaction, and how long restoring a connection's
/// settings may take. Past it the connection is closed.
pub(super) const END_WAIT: Duration = Duration::from_secs(1);

/// An inbox in a SQLite file.
///
/// It waits for the file's write lock as long as the pool's `busy_timeout` says, which a pool that the runtime makes itself
/// has from `lock_wait`, and at most a second at a time: then health reports that somebody else holds the lock.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pub(super) pool: SqlitePool,
    pub(super) file: Arc<SharedFile>,
    /// The settings of the pool's connections, as the first of them had them.
    settings: Arc<OnceLock<ConnectionSettings>>,
}

impl SqliteStore {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        let file = SharedFile::of(resolve(pool.connect_options().get_filename()));
        let settings = Arc::default();
        Self { pool, file, settings }
    }

    /// A connection of the pool.
    pub(super) async fn acquire(&self) -> Result<TxConnection<Sqlite>, StoreError> {
        let conn = self.pool.acquire().await.map(TxConnection::new).map_err(unavailable)?;
        self.file.check()?;
        Ok(conn)
    }

    /// Waits for its turn to write, then for a connection.
    pub(super) async fn writer(&self) -> Result<Writer, StoreError> {
        let turn = self.file.turn().await?;
        let mut conn = self.acquire().await?;
        // Until its settings are restored.
        conn.taint();
        let settings = self.settings(&mut conn).await?;
        settings.apply(&mut conn).await.map_err(unavailable)?;
        Ok(Writer {
            conn,
            store: self.clone(),
            _turn: turn,
        })
    }

    /// A writer with an open transaction of the runtime's own.
    pub(super) async fn begin_write(&self) -> Result<Writer, StoreError> {
        let mut writer = self.writer().await?;
        writer.begin().await?;
        Ok(writer)
    }

    /// The settings of the pool's connections. `conn` has just been lent, so that no handler has changed it.
    async fn settings(&self, conn: &mut SqliteConnection) -> Result<&ConnectionSettings, StoreError> {
        if let Some(settings) = self.settings.get() {
            return Ok(settings);
        }
        let settings = ConnectionSettings::read(conn).await.map_err(unavailable)?;
        Ok(self.settings.get_or_init(|| settings))
    }

    /// Proves that the file can be written to: a transaction that needs new pages is written to the disk, after which nothing
    /// of it is left.
    ///
    /// # Errors
    ///
    /// When it can't: the disk is full, the file is damaged, read-only, or not the one that was opened.
    pub(super) async fn write_and_delete(&self) -> Result<(), StoreError> {
        /// 16 pages of the usual size: with less room no handler could work.
        const BYTES: usize = 64 * 1024;
        let mut writer = self.begin_write().await?;
        for sql in [
            "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('', $1, 0)",
            "DELETE FROM inbox_events WHERE consumer_group = '' AND message_id = $1",
        ] {
            let filler = "x".repeat(BYTES);
            sqlx::query(sql)
                .bind(filler)
                .execute(&mut *writer.conn)
                .await
                .map_err(own_statement)?;
        }
        writer.commit().await
    }
}

/// A connection whose turn it is to write. It is closed on drop, unless it was [returned](Self::return_to_pool).
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) conn: TxConnection<Sqlite>,
    store: SqliteStore,
    _turn: WriteTurn,
}

impl Writer {
    pub(super) async fn begin(&mut self) -> Result<(), StoreError> {
        let file = &self.store.file;
        let tried = Instant::now();
        // IMMEDIATE: a transaction that becomes a writer late fails at once, whatever the busy timeout is.
        match self.conn.begin("BEGIN IMMEDIATE").await {
            Ok(()) => file.unlocked(),
            Err(error) if errors::is_busy(&error) => return Err(file.locked(tried)),
            Err(error) => return Err(unavailable(error)),
        }
        self.check_file(false)
    }

    /// Commits, and returns the connection to the pool.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.commit_and_keep().await.map_err(own_statement)?;
        self.check_file(true)?;
        self.return_to_pool().await;
        Ok(())
    }

    /// Commits, and keeps the connection.
    pub(super) async fn commit_and_keep(&mut self) -> sqlx::Result<()> {
        self.conn.commit().await?;
        self.conn.taint();
        Ok(())
    }

    /// Whether what is written, or has just been, arrives in the file.
    pub(super) fn check_file(&self, written: bool) -> Result<(), StoreError> {
        self.store.file.check()?;
        if self.store.settings.get().is_some_and(ConnectionSettings::has_wal) {
            self.store.file.check_wal(written)?;
        }
        Ok(())
    }

    /// Whether the connection is as the runtime has set it up, after a handler has had it.
    pub(super) async fn is_unchanged(&mut self) -> bool {
        match self.store.settings.get() {
            Some(settings) => settings.are_unchanged(&mut self.conn).await.unwrap_or(false),
            None => false,
        }
    }

    /// Returns the connection to the pool as it was; where that fails it is closed.
    pub(super) async fn return_to_pool(mut self) {
        let Some(settings) = self.store.settings.get() else {
            return;
        };
        if let Ok(Ok(())) = timeout(END_WAIT, settings.restore(&mut self.conn)).await {
            self.conn.clean();
        }
    }
}
