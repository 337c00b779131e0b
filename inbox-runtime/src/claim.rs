//! The inbox by hand: claiming a message on a transaction of one's own.

use inbox_rules::subject_rules;

use crate::{
    error::Error,
    message_id as ids,
    store::{Claim, ClaimError, Claimed, Connect, Fingerprint, InboxConnection, IntoStore, MigrateMode, Store},
};

/// Claims a message for a group on a transaction that is open on `conn`: inserts its inbox row.
///
/// For code that doesn't use `#[inbox_handler]`, and for handlers under `at_least_once` that claim themselves. The row is
/// there if and only if the transaction commits; while it is open, another claim of the same message waits for it. Returns
/// whether the message was handled before: then there is nothing to do.
///
/// The tables must be there: call [`migrate`] once.
///
/// # Errors
///
/// [`ClaimError::Invalid`] for a group or an id that can't be used (an id has 1 to 512 bytes, is not blank and contains no
/// NUL), [`ClaimError::NoTransaction`] when `conn` has no open transaction of sqlx's, [`ClaimError::Database`] otherwise.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use inbox_runtime::sqlx::{self, SqlitePool};
///
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}?mode=rwc", dir.path().join("app.db").display());
/// let pool = SqlitePool::connect(&url).await?;
/// inbox_runtime::migrate(&pool).await?;
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// if inbox_runtime::claim(&mut *tx, "billing", "evt-1").await?.is_duplicate() {
///     return Ok(());
/// }
/// // … the effects, through the same `tx` …
/// tx.commit().await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub async fn claim<C: InboxConnection>(conn: &mut C, group: &str, message_id: &str) -> Result<Claimed, ClaimError> {
    subject_rules::check_group(group).map_err(ClaimError::Invalid)?;
    ids::check(message_id).map_err(ClaimError::Invalid)?;
    if message_id.trim().is_empty() {
        return Err(ClaimError::Invalid("the message's id is blank".to_owned()));
    }
    let claim = Claim {
        group,
        message_id,
        fingerprint: Fingerprint::UNKNOWN,
    };
    C::Store::claim_on(conn, &claim).await
}

/// Makes the tables of the inbox in the database of that pool, or brings them up to date. Harmless when they are.
///
/// A running inbox does this by itself unless `INBOX_MIGRATE` says otherwise; this is for roles without the right to make
/// tables, and for programs that [`claim`] by hand.
///
/// # Errors
///
/// [`Error::Connect`] when the database can't be reached, in its own words and without a wait; [`Error::Migrate`] when a
/// migration fails, or a table of one of our names isn't ours.
pub async fn migrate<P: IntoStore + Clone>(pool: &P) -> Result<(), Error> {
    let records = crate::dead_letters::records(pool);
    let database = || P::Store::NAME.to_owned();
    records.check_connection().await.map_err(|source| Error::Connect {
        database: database(),
        source,
    })?;
    records
        .migrate(MigrateMode::Auto)
        .await
        .map_err(|source| Error::Migrate {
            database: database(),
            source,
        })
}
