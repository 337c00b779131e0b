//! PostgreSQL: a worker keeps its connection while it has messages, and proves each transaction before it commits.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use sqlx::{
    Connection, PgConnection, PgPool, Postgres, Row,
    error::DatabaseError,
    postgres::{PgConnectOptions, PgDatabaseError, PgPoolOptions, PgSeverity},
};

mod ahead;
mod claim;
mod migrate;
mod records;
mod seal;
mod statements;

pub use claim::PostgresSession;

use super::{
    Claim, ClaimError, Claimed, ConnectError, DatabaseFaultRef, FaultClass, InboxConnection, IntoStore, Records, Store,
    StoreError, StoreSettings,
    transaction::{self, TxConnection},
};
use crate::registry::Registration;

inventory::collect!(Registration<PostgresStore>);

impl InboxConnection for PgConnection {
    type Store = PostgresStore;
}

/// An inbox in a PostgreSQL database, in the schema that the connection's `search_path` names.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pool: PgPool,
    settings: StoreSettings,
    /// A handler deallocates prepared statements, ours among them: do without.
    plain: Arc<AtomicBool>,
}

impl PostgresStore {
    fn new(pool: PgPool, settings: StoreSettings) -> Self {
        // Behind a transaction pooler a prepared statement is not there in the next transaction.
        let plain = Arc::new(AtomicBool::new(settings.transaction_pooler));
        Self { pool, settings, plain }
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
        conn.begin("BEGIN READ ONLY").await.map_err(trouble)?;
        Ok(Reader { conn })
    }

    async fn describe(&self) -> Result<String, StoreError> {
        let row = sqlx::raw_sql(
            "SELECT current_setting('server_version'), current_setting('synchronous_commit'), \
             current_setting('default_transaction_isolation'), current_schema()::text",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(unavailable)?;
        let text = |column| row.try_get::<String, usize>(column).map_err(unavailable);
        Ok(format!(
            "PostgreSQL {} (synchronous_commit {}, isolation {}, schema {})",
            text(0)?,
            text(1)?,
            text(2)?,
            text(3)?
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
        self.conn.begin("BEGIN READ WRITE").await.map_err(trouble)
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        self.conn.commit().await.map_err(trouble)
    }
}

/// Opens a transaction on a connection behind a transaction pooler, on whichever connection to the server is free: the
/// prepared statements of this client's last transaction may not be there, and those of other clients may be.
async fn begin_pooled(conn: &mut TxConnection<Postgres>) -> sqlx::Result<()> {
    conn.begin("BEGIN").await?;
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
        self.conn.rollback().await.map_err(trouble)
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

    fn registrations() -> Vec<&'static Registration<Self>> {
        inventory::iter::<Registration<Self>>.into_iter().collect()
    }

    async fn connect(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        let mut options: PgConnectOptions = url.parse().map_err(|error| ConnectError::Url(Box::new(error)))?;
        if settings.transaction_pooler {
            options = options.statement_cache_capacity(0);
        }
        let pool = PgPoolOptions::new()
            .max_connections(settings.pool_size)
            .connect_with(options)
            .await
            .map_err(|error| ConnectError::Unavailable(Box::new(error)))?;
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
        match statements::insert(conn, claim, false).await {
            Ok(inserted) => Ok(inserted.claimed),
            Err(error) if is_of_the_message(&error) => Err(ClaimError::Invalid(format!(
                "the database can't store the message's id: {error}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    fn classify(&self, fault: &DatabaseFaultRef<'_>) -> FaultClass {
        match fault.code() {
            None if fault.is_connection() => FaultClass::Unavailable,
            None => FaultClass::Handler,
            Some(code) => classify(code),
        }
    }
}

impl IntoStore for PgPool {
    type Store = PostgresStore;

    fn into_store(self, settings: StoreSettings) -> PostgresStore {
        PostgresStore::new(self, settings)
    }
}

/// Sorts an error by its SQLSTATE, never by its text, which depends on the server's language.
fn classify(code: &str) -> FaultClass {
    match code {
        // Serialization failure, deadlock, lock not available.
        "40001" | "40P01" | "55P03" => FaultClass::Again,
        // A cached plan that a migration made useless; a prepared statement that isn't there, or is there twice.
        "0A000" | "26000" | "42P05" => FaultClass::Stale,
        // A standby, or a server that was set to read only.
        "25006" => FaultClass::Unavailable,
        // The session was ended while it waited for the handler.
        "25P03" | "25P04" | "57P05" => FaultClass::Unavailable,
        _ => match code.get(..2) {
            // Connection, authorization, resources, operator intervention but a cancelled query, system.
            Some("08" | "28" | "53" | "58") => FaultClass::Unavailable,
            Some("57") if code != "57014" => FaultClass::Unavailable,
            _ => FaultClass::Handler,
        },
    }
}

/// Sorts an error of one of our own statements.
fn trouble(error: sqlx::Error) -> StoreError {
    let class = code(&error).map(|code| classify(&code));
    match class {
        Some(FaultClass::Again | FaultClass::Stale) => StoreError::Again(Box::new(error)),
        _ => unavailable(error),
    }
}

/// Whether our claim, or a look at what is claimed, failed because the database can't keep the message's own values: a
/// character that its encoding lacks, a text that is too long for the column or the index.
fn is_of_the_message(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("22021" | "22P05" | "22001" | "54000"))
}

/// Sorts an error of the claim.
fn claim_trouble(error: sqlx::Error) -> StoreError {
    if is_of_the_message(&error) {
        StoreError::Message(Box::new(error))
    } else {
        trouble(error)
    }
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
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .is_some_and(|error| matches!(error.severity(), PgSeverity::Error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f04_errors_are_sorted_by_their_code() {
        for (class, codes) in [
            (FaultClass::Again, &["40001", "40P01", "55P03"][..]),
            (FaultClass::Stale, &["0A000", "26000", "42P05"]),
            (
                FaultClass::Unavailable,
                &[
                    "25006", "25P03", "57P01", "57P02", "57P03", "57P05", "53300", "53100", "08006", "58030", "28P01",
                ],
            ),
            (
                FaultClass::Handler,
                &["23505", "23503", "22012", "25P02", "42601", "57014", "P0001", "", "5"],
            ),
        ] {
            for code in codes {
                assert_eq!(classify(code), class, "{code}");
            }
        }
    }
}
