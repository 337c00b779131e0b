//! What a session asks the server beside the seal and the commit: the claim, and how one that waits too long is cancelled.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, postgres::PgRow};

use crate::store::{Claim, Claimed, Fingerprint};

/// How long cancelling a statement, or closing its connection, may take: the server may be gone.
pub(super) const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// The first statement of a transaction.
pub(super) enum First<'a> {
    /// Only asks for the transaction's id.
    Number,
    Claim(&'a Claim<'a>),
    /// Where duplicates come in a row, a look at the row costs less than an insert that finds it.
    LookAndClaim(&'a Claim<'a>),
}

/// What the first statement of a transaction says.
pub(super) struct Inserted {
    pub(super) claimed: Claimed,
    pub(super) xid: Option<String>,
}

/// Runs the first statement of a transaction. When it has no answer within `wait`, it is cancelled, and there is none.
pub(super) async fn within<F: Future<Output = ()>>(
    wait: Duration,
    conn: &mut PgConnection,
    first: First<'_>,
    cancel: impl FnOnce() -> F,
) -> Option<sqlx::Result<Inserted>> {
    let mut statement = std::pin::pin!(async {
        match first {
            First::Number => number(conn).await,
            First::Claim(claim) => insert(conn, claim, true).await,
            First::LookAndClaim(claim) => match find(conn, claim).await? {
                Some(found) => Ok(found),
                None => insert(conn, claim, true).await,
            },
        }
    });
    if let Ok(answer) = tokio::time::timeout(wait, statement.as_mut()).await {
        return Some(answer);
    }
    cancel().await;
    let _ = tokio::time::timeout(CLOSE_WAIT, statement).await;
    None
}

/// Inserts the inbox row, or says whose row is there: one statement for both, in which the second part is asked only if
/// the first inserted nothing. `named` says whether it may be prepared by name, which on a connection that isn't ours may
/// stand for somebody else's statement behind a transaction pooler.
pub(super) async fn insert(conn: &mut PgConnection, claim: &Claim<'_>, named: bool) -> sqlx::Result<Inserted> {
    loop {
        let (xid, kept): (Option<String>, Option<i64>) = sqlx::query_as(
            "WITH claim AS (INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ($1, $2, $3) \
             ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING pg_current_xact_id()::text AS xid) \
             SELECT (SELECT xid FROM claim), CASE WHEN EXISTS (SELECT FROM claim) THEN NULL ELSE \
             (SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2) END",
        )
        .persistent(named)
        .bind(claim.group)
        .bind(claim.message_id)
        .bind(claim.fingerprint.to_i64())
        .fetch_one(&mut *conn)
        .await?;
        let claimed = match (&xid, kept) {
            (Some(_), _) => Claimed::Fresh,
            (None, Some(kept)) => Claimed::Duplicate(Fingerprint::from_i64(kept)),
            // It was committed while the statement waited for it, so that only the next statement sees it; or it was
            // deleted since, and makes room for ours.
            (None, None) => continue,
        };
        return Ok(Inserted { claimed, xid });
    }
}

/// Whose row is there, if one is. That there is none means nothing: only the insert claims.
async fn find(conn: &mut PgConnection, claim: &Claim<'_>) -> sqlx::Result<Option<Inserted>> {
    let kept: Option<i64> =
        sqlx::query_scalar("SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2")
            .bind(claim.group)
            .bind(claim.message_id)
            .fetch_optional(conn)
            .await?;
    Ok(kept.map(|kept| Inserted {
        claimed: Claimed::Duplicate(Fingerprint::from_i64(kept)),
        xid: None,
    }))
}

/// The transaction's id, for a message that isn't claimed.
async fn number(conn: &mut PgConnection) -> sqlx::Result<Inserted> {
    let xid = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
        .fetch_one(conn)
        .await?;
    Ok(Inserted {
        claimed: Claimed::Fresh,
        xid: Some(xid),
    })
}

/// Cancels what runs on a connection, through another one that no pool can withhold.
pub(super) async fn cancel(pool: &PgPool, pid: i32) {
    let cancel = async {
        let mut conn = PgConnection::connect_with(&pool.connect_options()).await?;
        first(&mut conn, format!("SELECT pg_cancel_backend({pid})")).await?;
        conn.close().await
    };
    match tokio::time::timeout(CLOSE_WAIT, cancel).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a statement could not be cancelled"),
        Err(_) => tracing::debug!("a statement could not be cancelled in time"),
    }
}

/// The first row of a simple query, whose text has nothing in it that isn't ours. Outside of a transaction it is the only
/// kind that a transaction pooler doesn't spread over several connections.
pub(super) async fn first(conn: &mut PgConnection, sql: String) -> sqlx::Result<PgRow> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}
