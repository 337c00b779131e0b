//! The store itself: a pool of connections, and what has been learned about the server behind it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{Connection, PgPool, Postgres, Row};
use tokio::sync::OnceCell;

use super::{claim::ClaimSql, errors, simple_query::query_first};
use crate::store::{
    AttemptKey, StoreError, StoreSettings,
    encoding::{Charset, StoredKey},
    transaction::TxConnection,
};

/// How many connections relays may have: one for each of the two lanes that they work on, one for their looks.
const RELAY_CONNECTIONS: u32 = 3;
/// How long a relay's connection is kept that is not used.
const RELAY_IDLE: Duration = Duration::from_secs(60);

/// An inbox in a PostgreSQL database, in the schema that the connection's `search_path` names.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pub(super) pool: PgPool,
    pub(super) settings: StoreSettings,
    pub(super) server: Arc<ServerInfo>,
}

/// What has been learned about the server. It holds for all sessions.
#[derive(Debug, Default)]
pub(super) struct ServerInfo {
    /// A transaction-pooling proxy stands before the server: configured, or noticed at the first connection.
    pooler: AtomicBool,
    /// No statement is prepared by name: a pooler doesn't keep it, or a handler deallocates it.
    unnamed: AtomicBool,
    /// The claim in the schema that the first session found.
    claim: OnceLock<Arc<ClaimSql>>,
    /// The connections of relays, which keep them while they wait for the broker: workers must not wait for those.
    relay_pool: OnceLock<PgPool>,
    /// What texts can be stored, by the database's encoding.
    charset: OnceCell<Charset>,
}

impl PostgresStore {
    pub(super) fn new(pool: PgPool, settings: StoreSettings) -> Self {
        let server = ServerInfo {
            pooler: AtomicBool::new(settings.transaction_pooler),
            unnamed: AtomicBool::new(settings.transaction_pooler),
            ..ServerInfo::default()
        };
        Self {
            pool,
            settings,
            server: Arc::new(server),
        }
    }

    /// Whether a transaction-pooling proxy stands before the server.
    pub(super) fn is_pooled(&self) -> bool {
        self.server.pooler.load(Ordering::Relaxed)
    }

    /// Notes that a transaction-pooling proxy stands before the server.
    pub(super) fn set_pooled(&self) {
        self.server.pooler.store(true, Ordering::Relaxed);
        self.server.unnamed.store(true, Ordering::Relaxed);
    }

    /// Whether sessions may prepare statements by name.
    pub(super) fn may_name_statements(&self) -> bool {
        !self.server.unnamed.load(Ordering::Relaxed)
    }

    /// From now on no session prepares statements by name. Returns whether one might have before.
    pub(super) fn stop_naming_statements(&self) -> bool {
        !self.server.unnamed.swap(true, Ordering::Relaxed)
    }

    /// Notes the schema of the inbox's tables, quoted. The first session's counts: a handler may change the `search_path`.
    pub(super) fn set_schema(&self, schema: Option<&str>) {
        self.server.claim.get_or_init(|| Arc::new(ClaimSql::new(schema)));
    }

    /// The claim's statements.
    pub(super) fn claim_sql(&self) -> Arc<ClaimSql> {
        let known = self.server.claim.get().cloned();
        known.unwrap_or_else(|| Arc::new(ClaimSql::new(None)))
    }

    /// A connection of the pool.
    pub(super) async fn acquire(&self) -> Result<TxConnection<Postgres>, StoreError> {
        self.pool
            .acquire()
            .await
            .map(TxConnection::new)
            .map_err(errors::unavailable)
    }

    /// A connection with an open transaction that writes.
    pub(super) async fn begin_write(&self) -> Result<OwnTx, StoreError> {
        self.begin("BEGIN READ WRITE").await
    }

    /// A connection with an open transaction that reads. Without a transaction, a pooler that isn't known could send the parts
    /// of a statement with arguments to different servers.
    pub(super) async fn begin_read(&self) -> Result<OwnTx, StoreError> {
        self.begin("BEGIN READ ONLY").await
    }

    /// The same on a connection of a relay, with that statement.
    pub(super) async fn begin_relay(&self, statement: &'static str) -> Result<OwnTx, StoreError> {
        let conn = self.relay_pool().acquire().await.map(TxConnection::new);
        Self::begin_on(conn.map_err(errors::unavailable)?, statement).await
    }

    async fn begin(&self, statement: &'static str) -> Result<OwnTx, StoreError> {
        Self::begin_on(self.acquire().await?, statement).await
    }

    async fn begin_on(mut conn: TxConnection<Postgres>, statement: &'static str) -> Result<OwnTx, StoreError> {
        conn.begin(statement).await.map_err(errors::own_statement)?;
        Ok(OwnTx { conn })
    }

    /// The pool of relays: as the store's own, with few connections, which are closed when they are not used.
    pub(super) fn relay_pool(&self) -> &PgPool {
        self.server.relay_pool.get_or_init(|| {
            let options = self
                .pool
                .options()
                .clone()
                .min_connections(0)
                .max_connections(RELAY_CONNECTIONS);
            let options = options.idle_timeout(RELAY_IDLE);
            options.connect_lazy_with(self.pool.connect_options().as_ref().clone())
        })
    }

    pub(super) async fn charset(&self) -> Result<Charset, StoreError> {
        let asked = self.server.charset.get_or_try_init(async || {
            let mut conn = self.acquire().await?;
            let row = query_first(&mut conn, "SHOW server_encoding".to_owned())
                .await
                .map_err(errors::own_statement)?;
            let encoding: String = row.try_get(0).map_err(errors::unavailable)?;
            Ok(Charset::of(&encoding))
        });
        asked.await.copied()
    }

    pub(super) async fn stored(&self, key: &AttemptKey) -> Result<StoredKey, StoreError> {
        Ok(StoredKey::new(self.charset().await?, key))
    }
}

/// A transaction of the runtime's own, which no handler sees. Dropped, it is rolled back with its connection.
#[derive(Debug)]
pub(super) struct OwnTx {
    pub(super) conn: TxConnection<Postgres>,
}

impl OwnTx {
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.conn.commit().await.map_err(errors::own_statement)
    }

    /// Ends a transaction that has only read.
    pub(super) async fn end(mut self) -> Result<(), StoreError> {
        self.conn.rollback().await.map_err(errors::own_statement)
    }
}

/// Opens a transaction behind a transaction pooler, on whichever connection to the server is free: statements that this client
/// has prepared may not exist there, and those of other clients may.
pub(super) async fn begin_pooled(conn: &mut TxConnection<Postgres>, begin: &'static str) -> sqlx::Result<()> {
    conn.begin(begin).await?;
    conn.clear_cached_statements().await?;
    sqlx::raw_sql("DEALLOCATE ALL").execute(&mut **conn).await?;
    Ok(())
}
