//! Makes the inbox's tables in a PostgreSQL database in one transaction, or checks them.

use sqlx::{Connection, PgConnection, PgPool, Row};

use super::{catalog, connect::ANSWER_WAIT, errors, pool::begin_pooled};
use crate::store::{
    MigrateError, MigrateMode,
    migrations::{self, Catalog},
    schema::{self, ColumnKind, FoundTable, TableSpec},
    transaction::TxConnection,
};

const MIGRATIONS: migrations::Migrations = &[
    ("inbox", include_str!("../../../migrations/postgres/0001_inbox.sql")),
    (
        "dead letter key",
        include_str!("../../../migrations/postgres/0002_dead_letter_key.sql"),
    ),
    (
        "message records",
        include_str!("../../../migrations/postgres/0003_message_records.sql"),
    ),
    (
        "commit veto",
        include_str!("../../../migrations/postgres/0004_commit_veto.sql"),
    ),
    ("outbox", include_str!("../../../migrations/postgres/0005_outbox.sql")),
];

/// The first version that has `xid8`, as `server_version_num` has it.
const OLDEST_SERVER: i32 = 130_000;

/// Makes or checks the tables.
pub(super) async fn migrate(pool: &PgPool, mode: MigrateMode) -> Result<(), MigrateError> {
    let acquired = tokio::time::timeout(ANSWER_WAIT, pool.acquire()).await;
    let acquired = acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut));
    let mut conn = TxConnection::new(acquired.map_err(failed)?);
    refuse_settings(&mut conn).await?;
    if mode == MigrateMode::Off {
        return Ok(());
    }
    // A transaction pooler may stand before the server that isn't known yet.
    begin_pooled(&mut conn, "BEGIN").await.map_err(failed)?;
    let ready = make_or_check(&mut conn, mode).await;
    // Named prepared statements must not stay on a connection that others may use.
    if ready.is_ok() {
        conn.clear_cached_statements().await.map_err(failed)?;
    }
    match &ready {
        Ok(()) => conn.commit().await.map_err(failed)?,
        // Closed, which rolls back: if the session can't write because it was opened while the database was read only, the next
        // try needs another.
        Err(_) => return conn.close().await.map_err(failed).and(ready),
    }
    ready
}

async fn make_or_check(conn: &mut PgConnection, mode: MigrateMode) -> Result<(), MigrateError> {
    if mode == MigrateMode::Auto && !migrations::is_current(conn, MIGRATIONS).await? {
        make(conn).await?;
    }
    migrations::check(conn, mode).await
}

/// Refuses what would break the guarantee, or every statement.
async fn refuse_settings(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let row = sqlx::raw_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('synchronous_commit'), current_schema()",
    )
    .fetch_one(conn)
    .await
    .map_err(failed)?;
    let (version, synchronous, schema): (i32, String, Option<String>) = row
        .try_get(0)
        .and_then(|version| Ok((version, row.try_get(1)?, row.try_get(2)?)))
        .map_err(failed)?;
    if version < OLDEST_SERVER {
        return Err(MigrateError::Shape(format!(
            "PostgreSQL 13 or newer is needed; the server is {}",
            version / 10_000
        )));
    }
    if synchronous == "off" {
        return Err(MigrateError::Shape(
            "synchronous_commit is off, so a crash of the server forgets commits whose messages were acknowledged; set it \
             to on for this database or role"
                .to_owned(),
        ));
    }
    if schema.is_none() {
        return Err(MigrateError::Shape(
            "the connection's search_path names no schema that exists; the inbox's tables are made in the first that does"
                .to_owned(),
        ));
    }
    Ok(())
}

async fn make(conn: &mut PgConnection) -> Result<(), MigrateError> {
    // One program at a time: `IF NOT EXISTS` fails when two make the same table at once. The lock ends with the
    // transaction, so it works behind a pooler too. The number is random, and the inbox's own.
    sqlx::query("SELECT pg_advisory_xact_lock(7300182549962142721)")
        .execute(&mut *conn)
        .await
        .map_err(failed)?;
    migrations::apply(conn, MIGRATIONS).await
}

impl Catalog for PgConnection {
    const TABLES: &'static [TableSpec] = schema::POSTGRES;

    async fn table_exists(&mut self, table: &str) -> sqlx::Result<bool> {
        Ok(!catalog::columns(self, table).await?.is_empty())
    }

    async fn read_table(&mut self, table: &TableSpec) -> sqlx::Result<Option<FoundTable>> {
        catalog::read_table(self, table).await
    }

    fn types(kind: ColumnKind) -> &'static [&'static str] {
        catalog::types(kind)
    }

    fn is_transient(error: &sqlx::Error) -> bool {
        errors::is_transient(error)
    }
}

fn failed(error: sqlx::Error) -> MigrateError {
    migrations::failed::<PgConnection>(error)
}
