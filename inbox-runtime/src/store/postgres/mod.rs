//! PostgreSQL: a worker keeps its connection while it has messages, and proves each transaction before it commits.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use sqlx::{
    Connection, PgConnection, PgPool, Postgres, Row,
    error::DatabaseError,
    postgres::{PgConnectOptions, PgDatabaseError, PgPoolOptions, PgSeverity},
};

mod ahead;
mod claim;
mod errors;
mod migrate;
mod probe;
mod reach;
mod records;
mod seal;
mod shape;
mod statements;

pub use claim::PostgresSession;

use super::{
    Claim, ClaimError, Claimed, ConnectError, FaultClass, InboxConnection, IntoStore, Records, Store, StoreError,
    StoreSettings,
    transaction::{self, TxConnection},
};
use crate::{outcome::DatabaseFault, url::known_parameters};
use statements::Statements;

impl InboxConnection for PgConnection {
    type Store = PostgresStore;
}

/// An inbox in a PostgreSQL database, in the schema that the connection's `search_path` names.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pool: PgPool,
    settings: StoreSettings,
    shared: Arc<Shared>,
}

/// What is found out about a database, and holds for all sessions on it.
#[derive(Debug, Default)]
struct Shared {
    /// Whether a transaction-pooling proxy stands before the server: it was said, or noticed when it was first reached.
    pooler: AtomicBool,
    /// A handler deallocates prepared statements, ours among them: do without.
    plain: AtomicBool,
    /// With the schema that the first session found.
    statements: OnceLock<Arc<Statements>>,
}

impl Shared {
    /// Notes what a session has found, of which the first one's schema holds: a handler may send the `search_path` elsewhere.
    fn found(&self, schema: Option<&str>) {
        self.statements.get_or_init(|| Arc::new(Statements::new(schema)));
    }

    fn statements(&self) -> Arc<Statements> {
        self.statements
            .get()
            .cloned()
            .unwrap_or_else(|| Arc::new(Statements::new(None)))
    }

    /// The inbox's table, as it stands in a statement.
    fn events(&self) -> String {
        self.statements().events.clone()
    }
}

impl PostgresStore {
    fn new(pool: PgPool, settings: StoreSettings) -> Self {
        // Behind a transaction pooler a prepared statement is not there in the next transaction.
        let shared = Arc::new(Shared {
            pooler: AtomicBool::new(settings.transaction_pooler),
            plain: AtomicBool::new(settings.transaction_pooler),
            ..Shared::default()
        });
        Self { pool, settings, shared }
    }

    fn pooled(&self) -> bool {
        self.shared.pooler.load(Ordering::Relaxed)
    }

    async fn acquire(&self) -> Result<TxConnection<Postgres>, StoreError> {
        self.pool.acquire().await.map(TxConnection::new).map_err(unavailable)
    }

    async fn writer(&self) -> Result<Writer, StoreError> {
        Ok(Writer {
            conn: self.acquire().await?,
        })
    }

    /// A connection to read from, in a transaction: there may be a transaction pooler that nobody told us about, behind which
    /// the parts of a statement with arguments may reach different servers without one.
    async fn reader(&self) -> Result<Reader, StoreError> {
        let mut conn = self.acquire().await?;
        conn.begin("BEGIN READ ONLY").await.map_err(errors::own)?;
        Ok(Reader { conn })
    }

    /// What the start tries is what a probe tries.
    async fn try_write(&self) -> Result<(), StoreError> {
        probe::probe(self).await
    }

    async fn describe(&self) -> Result<String, StoreError> {
        let row = sqlx::raw_sql(
            "SELECT current_setting('server_version'), current_setting('synchronous_commit'), \
             current_setting('default_transaction_isolation'), current_schema()::text, \
             EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('inbox_events') AND tgname = 'inbox_guard' \
             AND tgenabled IN ('O', 'A'))",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(unavailable)?;
        let text = |column| row.try_get::<String, usize>(column).map_err(unavailable);
        let veto: bool = row.try_get(4).map_err(unavailable)?;
        if !veto {
            tracing::warn!(
                "the commit veto is missing (the trigger inbox_guard on inbox_events): a handler that runs COMMIT itself is \
                 found out, but what it has written by then stays; start once with INBOX_MIGRATE=auto, with a role that may \
                 create functions and triggers"
            );
        }
        Ok(format!(
            "PostgreSQL {} (synchronous_commit {}, isolation {}, schema {}, commit veto {})",
            text(0)?,
            text(1)?,
            text(2)?,
            text(3)?,
            if veto { "on" } else { "off" }
        ))
    }

    fn file(&self) -> Option<PathBuf> {
        None
    }
}

/// A connection of the pool, for a transaction of our own.
#[derive(Debug)]
struct Writer {
    conn: TxConnection<Postgres>,
}

impl Writer {
    async fn begin(&mut self) -> Result<(), StoreError> {
        self.conn.begin("BEGIN READ WRITE").await.map_err(errors::own)
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        self.conn.commit().await.map_err(errors::own)
    }
}

/// Opens a transaction on a connection behind a transaction pooler, on whichever connection to the server is free: the
/// prepared statements of this client's last transaction may not be there, and those of other clients may be.
async fn begin_pooled(conn: &mut TxConnection<Postgres>, begin: &'static str) -> sqlx::Result<()> {
    conn.begin(begin).await?;
    conn.clear_cached_statements().await?;
    sqlx::raw_sql("DEALLOCATE ALL").execute(&mut **conn).await?;
    Ok(())
}

/// A connection of the pool to read from.
#[derive(Debug)]
struct Reader {
    conn: TxConnection<Postgres>,
}

impl Reader {
    /// Gives it back. There is nothing to commit.
    async fn done(mut self) -> Result<(), StoreError> {
        self.conn.rollback().await.map_err(errors::own)
    }
}

impl Store for PostgresStore {
    type Conn = PgConnection;
    type Session = PostgresSession;

    const NAME: &'static str = "PostgreSQL";
    const VARIABLE: &'static str = "INBOX_POSTGRES_URL";
    const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];
    const EXAMPLE_URL: &'static str = "postgres://user:password@localhost/app";
    const TRANSACTIONAL: bool = true;

    fn at(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        let mut options = options(url)?;
        if settings.transaction_pooler {
            options = options.statement_cache_capacity(0);
        }
        let pool = PgPoolOptions::new()
            .max_connections(settings.pool_size)
            .connect_lazy_with(options);
        Ok(Self::new(pool, settings))
    }

    async fn session(&self) -> Result<PostgresSession, StoreError> {
        PostgresSession::open(self).await
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(records::PostgresRecords::new(self.clone()))
    }

    fn max_connections(&self) -> Option<u32> {
        Some(self.pool.options().get_max_connections())
    }

    async fn claim_on(conn: &mut PgConnection, claim: &Claim<'_>) -> Result<Claimed, ClaimError> {
        if transaction::depth::<Postgres>(conn) == 0 {
            return Err(ClaimError::NoTransaction);
        }
        match statements::insert(conn, &Statements::by_hand(), claim, false).await {
            Ok(inserted) => Ok(inserted.claimed),
            Err(error) if errors::is_of_the_message(&error) => Err(ClaimError::Invalid(format!(
                "the database can't store the message's id: {error}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    fn classify(&self, fault: &DatabaseFault) -> FaultClass {
        if fault.is_deployment() {
            return FaultClass::Deployment;
        }
        fault.code().map_or(FaultClass::Suspect, errors::handler)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        probe::probe(self).await
    }
}

impl IntoStore for PgPool {
    type Store = PostgresStore;

    fn into_store(self, settings: StoreSettings) -> PostgresStore {
        PostgresStore::new(self, settings)
    }
}

/// The parameters of a URL that sqlx takes; it would log the others with their values.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// The options of a URL. Nothing that is logged or returned has more of it than the names of parameters.
fn options(url: &str) -> Result<PgConnectOptions, ConnectError> {
    let known = |name: &str| PARAMETERS.contains(&name) || name.starts_with("options[");
    let (url, unknown) = known_parameters(url, known).map_err(|why| ConnectError::Url(why.into()))?;
    if !unknown.is_empty() {
        tracing::warn!(
            "the URL of PostgreSQL has parameters that are not known here and do nothing: {}",
            unknown.join(", ")
        );
    }
    url.parse().map_err(|error| ConnectError::Url(Box::new(error)))
}

fn unavailable(error: sqlx::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// The SQLSTATE of an answer of the server.
fn code(error: &sqlx::Error) -> Option<String> {
    error
        .as_database_error()
        .and_then(DatabaseError::code)
        .map(String::from)
}

/// Whether the server answered with an error and lives on, so that what it says of the transaction is the truth.
fn is_definite(error: &sqlx::Error) -> bool {
    severity(error) == Some(PgSeverity::Error)
}

/// How severe the server thinks its answer is.
fn severity(error: &sqlx::Error) -> Option<PgSeverity> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    Some(error.severity())
}
