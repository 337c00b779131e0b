//! SQLite as a store: its URLs, its pool, and what it answers the runtime.

use std::sync::Arc;

use sqlx::{
    Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use super::{claim, errors, outbox, pool::SqliteStore, session::SqliteSession};
use crate::{
    outcome::DatabaseFault,
    store::{
        Claim, ClaimError, Claimed, Connect, ConnectError, FaultClass, InboxConnection, IntoStore, NewOutboxMessage,
        PublishError, Records, Store, StoreError, StoreSettings, transaction,
    },
    url::{known_parameters, no_login},
};

impl InboxConnection for SqliteConnection {
    type Store = SqliteStore;
}

impl Connect for SqliteStore {
    const NAME: &'static str = "SQLite";
    const VARIABLE: &'static str = "INBOX_SQLITE_URL";
    const SCHEMES: &'static [&'static str] = &["sqlite"];
    const EXAMPLE_URL: &'static str = "sqlite://app.db";
    const TRANSACTIONAL: bool = true;

    fn from_url(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        let options = options(url)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(settings.pool_size)
            .connect_lazy_with(options.busy_timeout(settings.lock_wait));
        Ok(Self::new(pool))
    }
}

impl Store for SqliteStore {
    type Conn = SqliteConnection;
    type Session = SqliteSession;

    async fn session(&self) -> Result<SqliteSession, StoreError> {
        // A session waits for its turn in `begin`; a look at the database proves that it could be opened.
        sqlx::query("SELECT 1")
            .execute(&self.pool)
            .await
            .map_err(errors::unavailable)?;
        Ok(SqliteSession::new(self.clone()))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.write_and_delete().await
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.clone())
    }

    async fn claim_on(conn: &mut SqliteConnection, claim: &Claim<'_>) -> Result<Claimed, ClaimError> {
        if transaction::depth::<Sqlite>(conn) == 0 {
            return Err(ClaimError::NoTransaction);
        }
        Ok(claim::insert(conn, claim).await?)
    }

    async fn publish_on(conn: &mut SqliteConnection, message: &NewOutboxMessage) -> Result<(), PublishError> {
        outbox::publish_on(conn, message).await
    }

    async fn cancel_on(conn: &mut SqliteConnection, message_id: &str) -> Result<u64, PublishError> {
        outbox::cancel_on(conn, message_id).await
    }

    fn classify(&self, fault: &DatabaseFault) -> FaultClass {
        errors::handler_fault(fault)
    }
}

impl IntoStore for SqlitePool {
    type Store = SqliteStore;

    fn into_store(self, _settings: StoreSettings) -> SqliteStore {
        SqliteStore::new(self)
    }
}

/// The options of a URL. The error has nothing of it but the names of parameters.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pool_that_the_runtime_makes_has_the_configured_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("app.db").display());
        let settings = StoreSettings {
            pool_size: 3,
            ..StoreSettings::default()
        };
        let store = SqliteStore::from_url(&url, settings).expect("a database");
        assert_eq!(store.pool.options().get_max_connections(), 3);
    }
}
