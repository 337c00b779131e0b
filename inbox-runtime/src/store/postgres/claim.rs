//! The claim: the first statement of a handler's transaction, which inserts the message's inbox row.

use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, PgConnection};

use crate::store::{Claim, Claimed, Fingerprint, claim::ClaimSet};

/// How a handler's transaction begins: it may write where the session may not, and the commit veto recognizes it by being
/// deferrable, which has no other meaning for a transaction that writes.
pub(super) const BEGIN: &str = "BEGIN READ WRITE, DEFERRABLE";

/// How long a claim that was cancelled may take to say so.
const CANCELLED_WAIT: Duration = Duration::from_secs(1);

/// The claim's statements, which qualify the inbox's table with its schema.
#[derive(Debug)]
pub(super) struct ClaimSql {
    /// The table as it stands in a statement.
    pub(super) events: String,
    insert: Arc<str>,
    insert_set: Arc<str>,
    find: Arc<str>,
}

impl ClaimSql {
    /// For a table of that schema, given quoted, or of the one that the `search_path` finds.
    pub(super) fn new(schema: Option<&str>) -> Self {
        let events = schema.map_or_else(|| "inbox_events".to_owned(), |schema| format!("{schema}.inbox_events"));
        Self::on(events, "xid")
    }

    /// For a transaction of the application's, which passes the commit veto even if it is deferrable.
    pub(super) fn by_hand() -> Self {
        Self::on("inbox_events".to_owned(), "set_config('inbox.sealed', xid, true)")
    }

    fn on(events: String, xid: &str) -> Self {
        let insert = format!(
            "WITH claim AS ({}) SELECT (SELECT {xid} FROM claim), CASE WHEN EXISTS (SELECT FROM claim) THEN NULL ELSE \
             (SELECT fingerprint FROM {events} WHERE consumer_group = $1 AND message_id = $2) END",
            insert_sql(&events)
        );
        let find = format!("SELECT fingerprint FROM {events} WHERE consumer_group = $1 AND message_id = $2");
        Self {
            insert: insert.into(),
            insert_set: insert_set_sql(&events).into(),
            find: find.into(),
            events,
        }
    }
}

/// Inserts the inbox row and returns the transaction's id, or no row if the inbox row exists.
pub(super) fn insert_sql(events: &str) -> String {
    format!(
        "INSERT INTO {events} (consumer_group, message_id, fingerprint) VALUES ($1, $2, $3) \
         ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING pg_current_xact_id()::text AS xid"
    )
}

/// Inserts the inbox rows of a set of claims, in the order of the arrays. Returns for each the transaction's id if it was inserted,
/// or the fingerprint of the row that was there before.
fn insert_set_sql(events: &str) -> String {
    format!(
        "WITH wanted AS (
            SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS w (grp, id, fingerprint, n)
        ), claim AS (
            INSERT INTO {events} (consumer_group, message_id, fingerprint)
            SELECT grp, id, fingerprint FROM wanted ORDER BY n
            ON CONFLICT (consumer_group, message_id) DO NOTHING
            RETURNING consumer_group, message_id, pg_current_xact_id()::text AS xid
        )
        SELECT claim.xid, kept.fingerprint FROM wanted
        LEFT JOIN claim ON claim.consumer_group = wanted.grp AND claim.message_id = wanted.id
        LEFT JOIN {events} AS kept
            ON claim.xid IS NULL AND kept.consumer_group = wanted.grp AND kept.message_id = wanted.id
        ORDER BY wanted.n"
    )
}

/// The first statement of a transaction.
pub(super) enum FirstStatement<'a> {
    /// Only asks for the transaction's id.
    TransactionId,
    Claim(&'a Claim<'a>),
    /// In a streak of duplicates, a look at the row costs less than an insert that conflicts with it.
    FindThenClaim(&'a Claim<'a>),
    /// Several claims at once.
    ClaimSet(&'a [Claim<'a>]),
}

/// The answer to the first statement of a transaction.
pub(super) struct FirstAnswer {
    /// One for each claim.
    pub(super) claimed: Vec<Claimed>,
    /// The transaction's id, unless nothing was inserted.
    pub(super) xid: Option<String>,
}

impl From<ClaimAnswer> for FirstAnswer {
    fn from(ClaimAnswer { claimed, xid }: ClaimAnswer) -> Self {
        let claimed = vec![claimed];
        Self { claimed, xid }
    }
}

/// The answer to one claim.
pub(super) struct ClaimAnswer {
    pub(super) claimed: Claimed,
    /// The transaction's id, unless nothing was inserted.
    pub(super) xid: Option<String>,
}

/// Runs the first statement of a transaction. Without an answer within `wait` it is cancelled, and the result is `None`.
pub(super) async fn within<F: Future<Output = ()>>(
    wait: Duration,
    conn: &mut PgConnection,
    sql: &ClaimSql,
    first: FirstStatement<'_>,
    cancel: impl FnOnce() -> F,
) -> Option<sqlx::Result<FirstAnswer>> {
    let mut statement = std::pin::pin!(async {
        match first {
            FirstStatement::TransactionId => transaction_id(conn).await,
            FirstStatement::Claim(claim) => Ok(insert(conn, sql, claim, true).await?.into()),
            FirstStatement::FindThenClaim(claim) => match find(conn, sql, claim).await? {
                Some(found) => Ok(found.into()),
                None => Ok(insert(conn, sql, claim, true).await?.into()),
            },
            FirstStatement::ClaimSet(claims) => insert_set(conn, sql, claims).await,
        }
    });
    if let Ok(answer) = tokio::time::timeout(wait, statement.as_mut()).await {
        return Some(answer);
    }
    cancel().await;
    let _ = tokio::time::timeout(CANCELLED_WAIT, statement).await;
    None
}

/// Inserts the inbox row, or returns the fingerprint of the one that exists: one statement, whose second part runs only if the
/// first inserted nothing. `named` allows to prepare it by name; on a connection that isn't ours, behind a transaction
/// pooler, the name may be somebody else's statement.
pub(super) async fn insert(
    conn: &mut PgConnection,
    sql: &ClaimSql,
    claim: &Claim<'_>,
    named: bool,
) -> sqlx::Result<ClaimAnswer> {
    // A conflict without a visible row lasts a moment; a trigger that swallows rows lasts.
    for _ in 0..TRIES {
        let (xid, kept): (Option<String>, Option<i64>) = sqlx::query_as(AssertSqlSafe(sql.insert.clone()))
            .persistent(named)
            .bind(claim.group)
            .bind(claim.message_id)
            .bind(claim.fingerprint.to_i64())
            .fetch_one(&mut *conn)
            .await?;
        let claimed = match (&xid, kept) {
            (Some(_), _) => Claimed::Fresh,
            (None, Some(kept)) => Claimed::Duplicate(Fingerprint::from_i64(kept)),
            // The row was committed while the statement waited for it, so that only the next statement sees it; or it has
            // been deleted since.
            (None, None) => continue,
        };
        return Ok(ClaimAnswer { claimed, xid });
    }
    Err(inserts_nothing())
}

fn inserts_nothing() -> sqlx::Error {
    sqlx::Error::Protocol(
        "the INSERT of the inbox row inserts nothing, though there is no row; look at the triggers and rules of the table \
         inbox_events"
            .to_owned(),
    )
}

/// Claims a set in one statement, and in further ones only those whose rows were committed while it waited for them.
async fn insert_set(conn: &mut PgConnection, sql: &ClaimSql, claims: &[Claim<'_>]) -> sqlx::Result<FirstAnswer> {
    let mut set = ClaimSet::new(claims);
    let mut ours = None;
    for _ in 0..TRIES {
        let rows = try_insert_set(conn, sql, &set).await?;
        let answers = rows.into_iter().map(|(xid, kept)| {
            let kept = kept.map(|kept| Claimed::Duplicate(Fingerprint::from_i64(kept)));
            let fresh = xid.is_some().then_some(Claimed::Fresh);
            ours = ours.take().or(xid);
            fresh.or(kept)
        });
        set.answer(answers);
        if set.open().len() == 0 {
            let claimed = set.into_answers();
            return Ok(FirstAnswer { claimed, xid: ours });
        }
    }
    Err(inserts_nothing())
}

/// One row for each open claim, in their order: the transaction's id if it was inserted, or the fingerprint that was there.
async fn try_insert_set(
    conn: &mut PgConnection,
    sql: &ClaimSql,
    set: &ClaimSet<'_>,
) -> sqlx::Result<Vec<(Option<String>, Option<i64>)>> {
    sqlx::query_as(AssertSqlSafe(sql.insert_set.clone()))
        .bind(Vec::from_iter(set.open().map(|claim| claim.group)))
        .bind(Vec::from_iter(set.open().map(|claim| claim.message_id)))
        .bind(Vec::from_iter(set.open().map(|claim| claim.fingerprint.to_i64())))
        .fetch_all(conn)
        .await
}

/// How often a claim is tried that neither inserts a row nor finds one.
const TRIES: usize = 100;

/// The fingerprint of the inbox row, if it exists. That none is found decides nothing: only the insert claims.
async fn find(conn: &mut PgConnection, sql: &ClaimSql, claim: &Claim<'_>) -> sqlx::Result<Option<ClaimAnswer>> {
    let kept: Option<i64> = sqlx::query_scalar(AssertSqlSafe(sql.find.clone()))
        .bind(claim.group)
        .bind(claim.message_id)
        .fetch_optional(conn)
        .await?;
    Ok(kept.map(|kept| ClaimAnswer {
        claimed: Claimed::Duplicate(Fingerprint::from_i64(kept)),
        xid: None,
    }))
}

/// The transaction's id, for a message that isn't claimed.
async fn transaction_id(conn: &mut PgConnection) -> sqlx::Result<FirstAnswer> {
    let xid = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
        .fetch_one(conn)
        .await?;
    Ok(FirstAnswer {
        claimed: Vec::new(),
        xid: Some(xid),
    })
}
