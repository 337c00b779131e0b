//! PostgreSQL as a store: its URLs, its pool, and what it answers the runtime.

use std::sync::Arc;

use sqlx::{
    PgConnection, PgPool, Postgres,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    claim::{self, ClaimSql},
    connection::PostgresSession,
    errors::{self, Meaning, Step},
    pool::PostgresStore,
    probe::probe,
    publish,
};
use crate::{
    outcome::DatabaseFault,
    store::{
        Claim, ClaimError, Claimed, Connect, ConnectError, FaultClass, InboxConnection, IntoStore, NewOutboxMessage,
        PublishError, Records, Store, StoreError, StoreSettings, transaction,
    },
    url::known_parameters,
};

impl InboxConnection for PgConnection {
    type Store = PostgresStore;
}

impl Connect for PostgresStore {
    const NAME: &'static str = "PostgreSQL";
    const VARIABLE: &'static str = "INBOX_POSTGRES_URL";
    const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];
    const EXAMPLE_URL: &'static str = "postgres://user:password@localhost/app";
    const TRANSACTIONAL: bool = true;

    fn from_url(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        let mut options = options(url)?;
        if settings.transaction_pooler {
            options = options.statement_cache_capacity(0);
        }
        let pool = PgPoolOptions::new()
            .max_connections(settings.pool_size)
            .connect_lazy_with(options);
        Ok(Self::new(pool, settings))
    }

    fn max_connections(&self) -> Option<u32> {
        Some(self.pool.options().get_max_connections())
    }
}

impl Store for PostgresStore {
    type Conn = PgConnection;
    type Session = PostgresSession;

    async fn session(&self) -> Result<PostgresSession, StoreError> {
        PostgresSession::open(self).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        probe(self).await
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.clone())
    }

    async fn claim_on(conn: &mut PgConnection, claim: &Claim<'_>) -> Result<Claimed, ClaimError> {
        if transaction::depth::<Postgres>(conn) == 0 {
            return Err(ClaimError::NoTransaction);
        }
        match claim::insert(conn, &ClaimSql::by_hand(), claim, false).await {
            Ok(answer) => Ok(answer.claimed),
            Err(error) if errors::meaning(Step::Claim, &error) == Meaning::Unstorable => Err(ClaimError::Invalid(
                format!("the database can't store the message's id: {error}"),
            )),
            Err(error) => Err(error.into()),
        }
    }

    async fn publish_on(conn: &mut PgConnection, message: &NewOutboxMessage) -> Result<(), PublishError> {
        publish::publish_on(conn, message).await
    }

    async fn cancel_on(conn: &mut PgConnection, message_id: &str) -> Result<u64, PublishError> {
        publish::cancel_on(conn, message_id).await
    }

    fn classify(&self, fault: &DatabaseFault) -> FaultClass {
        match fault {
            DatabaseFault::Answer { code, .. } => errors::handler_fault(code),
            DatabaseFault::Connection => FaultClass::Suspect,
        }
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
