//! What a session asks the server beside the seal and the commit: the claim, and how one that waits too long is cancelled.

use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row, postgres::PgRow};

use crate::store::{Claim, Claimed, Fingerprint};

/// How a handler's transaction begins: it may write where the session may not, and the commit veto knows it by its being
/// deferrable, which means nothing else to a transaction that writes.
pub(super) const BEGIN: &str = "BEGIN READ WRITE, DEFERRABLE";

/// How long closing a connection may take: the server may be gone.
pub(super) const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// How long it may take to have a statement cancelled, which needs a connection of its own.
const CANCEL_WAIT: Duration = Duration::from_secs(5);
/// How long a statement that a handler has given up on may run on before its connection is closed.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(1);

/// The texts of the statements on the inbox's table, which name it with its schema.
#[derive(Debug)]
pub(super) struct Statements {
    /// The table, as it stands in a statement.
    pub(super) events: String,
    insert: Arc<str>,
    find: Arc<str>,
}

impl Statements {
    /// For a table of the schema whose name is quoted so, or of the one that the `search_path` finds.
    pub(super) fn new(schema: Option<&str>) -> Self {
        let events = schema.map_or_else(|| "inbox_events".to_owned(), |schema| format!("{schema}.inbox_events"));
        Self::on(events, "xid")
    }

    /// For a transaction of somebody else's, which may commit as it likes, though it be deferrable.
    pub(super) fn by_hand() -> Self {
        Self::on("inbox_events".to_owned(), "set_config('inbox.sealed', xid, true)")
    }

    fn on(events: String, xid: &str) -> Self {
        let insert = format!(
            "WITH claim AS ({}) SELECT (SELECT {xid} FROM claim), CASE WHEN EXISTS (SELECT FROM claim) THEN NULL ELSE \
             (SELECT fingerprint FROM {events} WHERE consumer_group = $1 AND message_id = $2) END",
            claim_sql(&events)
        );
        let find = format!("SELECT fingerprint FROM {events} WHERE consumer_group = $1 AND message_id = $2");
        Self {
            events,
            insert: insert.into(),
            find: find.into(),
        }
    }
}

/// Inserts the inbox row and returns the transaction's id, or nothing if there is a row.
pub(super) fn claim_sql(events: &str) -> String {
    format!(
        "INSERT INTO {events} (consumer_group, message_id, fingerprint) VALUES ($1, $2, $3) \
         ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING pg_current_xact_id()::text AS xid"
    )
}

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
    statements: &Statements,
    first: First<'_>,
    cancel: impl FnOnce() -> F,
) -> Option<sqlx::Result<Inserted>> {
    let mut statement = std::pin::pin!(async {
        match first {
            First::Number => number(conn).await,
            First::Claim(claim) => insert(conn, statements, claim, true).await,
            First::LookAndClaim(claim) => match find(conn, statements, claim).await? {
                Some(found) => Ok(found),
                None => insert(conn, statements, claim, true).await,
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
pub(super) async fn insert(
    conn: &mut PgConnection,
    statements: &Statements,
    claim: &Claim<'_>,
    named: bool,
) -> sqlx::Result<Inserted> {
    // What is there and isn't seen is so for a moment only; a trigger that swallows rows is there for good.
    for _ in 0..TRIES {
        let (xid, kept): (Option<String>, Option<i64>) = sqlx::query_as(AssertSqlSafe(statements.insert.clone()))
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
    Err(sqlx::Error::Protocol(
        "the INSERT of the inbox row inserts nothing, though there is no row; look at the triggers and rules of the table \
         inbox_events"
            .to_owned(),
    ))
}

/// How often a claim is made that finds neither room for its row nor a row.
const TRIES: usize = 100;

/// Whose row is there, if one is. That there is none means nothing: only the insert claims.
async fn find(conn: &mut PgConnection, statements: &Statements, claim: &Claim<'_>) -> sqlx::Result<Option<Inserted>> {
    let kept: Option<i64> = sqlx::query_scalar(AssertSqlSafe(statements.find.clone()))
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
    ask_to_cancel(pool, format!("SELECT pg_cancel_backend({pid})")).await;
}

/// Cancels what runs on a connection unless the transaction of that id may still be open there. Returns whether it has.
pub(super) async fn cancel_behind(pool: &PgPool, pid: i32, xid: Option<&str>) -> bool {
    let Some(xid) = xid.and_then(|xid| xid.parse::<u64>().ok()) else {
        return false;
    };
    // What the server shows of a transaction's id has no epoch. A transaction that is being committed has it until the
    // commit is on the disk (and on the standbys that it waits for).
    let xid = xid & u64::from(u32::MAX);
    let sql = format!(
        "SELECT coalesce((SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = {pid} \
         AND wait_event_type = 'Lock' AND backend_xid IS DISTINCT FROM '{xid}'::xid), false)"
    );
    ask_to_cancel(pool, sql).await
}

async fn ask_to_cancel(pool: &PgPool, sql: String) -> bool {
    let cancel = async {
        let mut conn = direct(pool).await?;
        let cancelled = first(&mut conn, sql).await?.try_get(0)?;
        conn.close().await?;
        Ok::<bool, sqlx::Error>(cancelled)
    };
    match tokio::time::timeout(CANCEL_WAIT, cancel).await {
        Ok(Ok(cancelled)) => cancelled,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a statement could not be cancelled");
            false
        }
        Err(_) => {
            tracing::debug!("a statement could not be cancelled in time");
            false
        }
    }
}

/// A connection of no pool, which nobody can withhold.
pub(super) async fn direct(pool: &PgPool) -> sqlx::Result<PgConnection> {
    PgConnection::connect_with(&pool.connect_options()).await
}

/// The first row of a simple query, whose text has nothing in it that isn't ours. Outside of a transaction it is the only
/// kind that a transaction pooler doesn't spread over several connections.
pub(super) async fn first(conn: &mut PgConnection, sql: String) -> sqlx::Result<PgRow> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}
