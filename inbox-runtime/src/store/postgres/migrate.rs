//! The tables of the inbox in a PostgreSQL database: made in one transaction of ours, or looked for.

use sqlx::{Connection, PgConnection, PgPool, Row};

use super::{begin_pooled, reach, shape};
use crate::store::{
    Migrate, MigrateError,
    migrate::{self, Schema},
    shape::{Found, Kind, Table},
    transaction::TxConnection,
};

/// Each with its name, in order.
const MIGRATIONS: migrate::Migrations = &[
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
];

/// The first version that has `xid8`.
const OLDEST_SERVER: i32 = 130_000;

/// Makes or checks the tables.
pub(super) async fn migrate(pool: &PgPool, mode: Migrate) -> Result<(), MigrateError> {
    let acquired = tokio::time::timeout(reach::ANSWER, pool.acquire()).await;
    let acquired = acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut));
    let mut conn = TxConnection::new(acquired.map_err(failed)?);
    refuse_settings(&mut conn).await?;
    if mode == Migrate::Off {
        return Ok(());
    }
    // There may be a transaction pooler, and if there is none, it is done once.
    begin_pooled(&mut conn, "BEGIN").await.map_err(failed)?;
    let ready = make_or_check(&mut conn, mode).await;
    // What was prepared by name must not stay behind on a connection that others use.
    if ready.is_ok() {
        conn.clear_cached_statements().await.map_err(failed)?;
    }
    match &ready {
        Ok(()) => conn.commit().await.map_err(failed)?,
        // Closed, which rolls back: what keeps the session from writing (it was made while the database was read only) must not
        // meet the next try.
        Err(_) => return conn.close().await.map_err(failed).and(ready),
    }
    ready
}

async fn make_or_check(conn: &mut PgConnection, mode: Migrate) -> Result<(), MigrateError> {
    if mode == Migrate::Auto && !migrate::is_current(conn, MIGRATIONS).await? {
        make(conn).await?;
    }
    migrate::check(conn, mode).await
}

/// What would break the guarantee, or every statement.
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
    // transaction, so it holds behind a pooler too. The number is the inbox's own, taken at random.
    sqlx::query("SELECT pg_advisory_xact_lock(7300182549962142721)")
        .execute(&mut *conn)
        .await
        .map_err(failed)?;
    migrate::make(conn, MIGRATIONS).await
}

impl Schema for PgConnection {
    async fn is_there(&mut self, table: &str) -> sqlx::Result<bool> {
        Ok(!shape::columns(self, table).await?.is_empty())
    }

    async fn find(&mut self, table: &Table) -> sqlx::Result<Option<Found>> {
        shape::find(self, table).await
    }

    fn types(kind: Kind) -> &'static [&'static str] {
        shape::types(kind)
    }

    fn passes(error: &sqlx::Error) -> bool {
        reach::passes(error)
    }
}

fn failed(error: sqlx::Error) -> MigrateError {
    migrate::failed::<PgConnection>(error)
}
