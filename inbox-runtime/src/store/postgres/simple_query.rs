//! Simple queries, and connections beside the pool.

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, postgres::PgRow};

/// The first row of a simple query, whose text contains nothing that isn't ours. Outside of a transaction a simple query is
/// the only kind that a transaction pooler doesn't spread over several connections.
pub(super) async fn query_first(conn: &mut PgConnection, sql: String) -> sqlx::Result<PgRow> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}

/// A connection beside the pool, which is available however busy the pool is.
pub(super) async fn connect_beside(pool: &PgPool) -> sqlx::Result<PgConnection> {
    PgConnection::connect_with(&pool.connect_options()).await
}
