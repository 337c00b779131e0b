//! The end of a transaction and the beginning of the next in one simple query: reset, write what was published, seal, commit,
//! begin, claim.

use std::{fmt::Write, future::Future, time::Duration};

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row};

use super::{
    claim::{BEGIN, insert_sql},
    errors::Step,
    publish::OutboxSql,
    seal::RESET,
    simple_text::push_text,
};
use crate::store::Claim;

/// How many statements have been answered when the session is reset.
const RESETTED: usize = statements(RESET);

/// The step that failed: without it an error's code has no meaning.
#[derive(Debug)]
pub(super) enum CommitError {
    /// The writing of what was published: nothing has been committed.
    Outbox(sqlx::Error),
    /// The seal, or what stands before it: nothing has been committed.
    Seal(sqlx::Error),
    /// The commit.
    Commit(sqlx::Error),
}

impl CommitError {
    pub(super) fn into_parts(self) -> (Step, sqlx::Error) {
        match self {
            Self::Outbox(error) => (Step::Outbox, error),
            Self::Seal(error) => (Step::Seal, error),
            Self::Commit(error) => (Step::Commit, error),
        }
    }
}

/// The answer to a commit that succeeded.
#[derive(Debug)]
pub(super) struct CommitAnswer {
    /// The handler left something on the session that the seal can't undo.
    pub(super) dirty: bool,
    pub(super) next: BeginResult,
}

/// How the beginning of the next transaction ended.
#[derive(Debug)]
pub(super) enum BeginResult {
    /// None was requested; or it is open and has claimed nothing, because no claim was requested or the row exists.
    Unclaimed,
    /// It is open and has made the claim; this is its id.
    Claimed(String),
    /// It could not be begun, or its claim failed.
    Failed(sqlx::Error),
    /// Its claim has waited for too long, and was cancelled.
    Cancelled,
}

/// A commit, and the beginning of the next transaction.
pub(super) struct CommitRequest<'a> {
    /// What writes what was published.
    pub(super) outbox: &'a OutboxSql,
    pub(super) seal: &'a str,
    /// Whether the next transaction is begun.
    pub(super) begins: bool,
    /// The claim of the next transaction.
    pub(super) claim: Option<&'a Claim<'a>>,
    /// The table of the inbox, as it stands in a statement.
    pub(super) events: &'a str,
    /// Whether the session has prepared the claim; set when it is prepared here.
    pub(super) prepared: &'a mut bool,
    /// How long the claim waits for another transaction.
    pub(super) wait: Duration,
}

/// Resets, seals, commits and begins the next transaction. The error is that of the seal or the commit; what fails after the
/// commit doesn't concern this transaction.
///
/// The server answers all statements together, so a claim that waits for a lock delays the answer to the commit. `cancel` is
/// called each time `wait` has passed: it cancels what runs only if that comes after the commit, and returns whether it did.
pub(super) async fn commit_and_begin<F: Future<Output = bool>>(
    conn: &mut PgConnection,
    request: CommitRequest<'_>,
    cancel: impl Fn() -> F,
) -> Result<CommitAnswer, CommitError> {
    // How many statements have been answered when what was published is written, the transaction sealed and committed.
    let written = RESETTED + request.outbox.statements;
    let (sealed, committed) = (written + 1, written + 2);
    let prepares = request.claim.is_some() && !*request.prepared;
    // Zero would be a busy loop.
    let wait = request.wait.max(Duration::from_millis(1));
    let mut answers = sqlx::raw_sql(AssertSqlSafe(request.text())).fetch_many(conn);
    let (mut done, mut dirty, mut xid, mut cancelled) = (0, None, None, false);
    let next = loop {
        let answer = match tokio::time::timeout(wait, answers.try_next()).await {
            Ok(answer) => answer,
            Err(_) => {
                cancelled |= request.claim.is_some() && cancel().await;
                continue;
            }
        };
        match answer {
            Ok(Some(Either::Left(_))) => {
                done += 1;
                *request.prepared |= prepares && done == committed + 2;
            }
            // Of the settings that are restored before what was published is written.
            Ok(Some(Either::Right(_))) if done < written => {}
            Ok(Some(Either::Right(row))) if done < sealed => {
                dirty = Some(row.try_get(0).map_err(CommitError::Seal)?);
            }
            Ok(Some(Either::Right(row))) => xid = row.try_get(0).ok(),
            Err(error) if (RESETTED..written).contains(&done) => return Err(CommitError::Outbox(error)),
            Err(error) if done < sealed => return Err(CommitError::Seal(error)),
            Err(error) if done < committed => return Err(CommitError::Commit(error)),
            Err(error) => break BeginResult::Failed(error),
            Ok(None) if done >= committed => break xid.map_or(BeginResult::Unclaimed, BeginResult::Claimed),
            // The answer to a statement that the handler has left on the connection.
            Ok(None) => break BeginResult::Unclaimed,
        }
    };
    match dirty {
        Some(dirty) if done >= committed => {
            let next = if cancelled { BeginResult::Cancelled } else { next };
            Ok(CommitAnswer { dirty, next })
        }
        _ => Err(CommitError::Seal(sqlx::Error::Protocol(
            "the answer belongs to a statement of the handler's".to_owned(),
        ))),
    }
}

impl CommitRequest<'_> {
    fn text(&self) -> String {
        let mut sql = String::with_capacity(512 + self.outbox.text.len());
        sql.push_str(RESET);
        sql.push_str(&self.outbox.text);
        sql.push_str(self.seal);
        // Not AND CHAIN: that would keep what a handler has set for its transaction, such as READ ONLY.
        sql.push_str("; COMMIT");
        if self.begins {
            sql.push_str("; ");
            sql.push_str(BEGIN);
        }
        let Some(claim) = self.claim else { return sql };
        if !*self.prepared {
            let _ = write!(
                sql,
                "; PREPARE inbox_claim (text, text, bigint) AS {}",
                insert_sql(self.events)
            );
        }
        sql.push_str("; EXECUTE inbox_claim (");
        push_text(&mut sql, claim.group);
        sql.push_str(", ");
        push_text(&mut sql, claim.message_id);
        let _ = write!(sql, ", {})", claim.fingerprint.to_i64());
        sql
    }
}

/// How many statements a text has, each of which ends with a semicolon.
const fn statements(sql: &str) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < sql.len() {
        count += (sql.as_bytes()[at] == b';') as usize;
        at += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Fingerprint;

    #[test]
    fn a_message_cannot_inject_sql() {
        let claim = Claim {
            group: "billing",
            message_id: "a'); DROP TABLE inbox_events; --\\\u{e9}",
            fingerprint: Fingerprint::from_i64(-7),
        };
        let request = CommitRequest {
            outbox: &OutboxSql::default(),
            seal: "SELECT 1",
            begins: true,
            claim: Some(&claim),
            events: "public.inbox_events",
            prepared: &mut true,
            wait: Duration::ZERO,
        };
        let sql = request.text();
        assert!(!sql.contains("DROP") && !sql.contains('\\'), "{sql}");
        assert!(sql.contains("EXECUTE inbox_claim ('billing', convert_from("), "{sql}");
        assert!(sql.contains("decode('6127293b2044524f50"), "{sql}");
        assert!(sql.contains("2d2d5cc3a9'"), "{sql}");
        assert!(sql.contains(", -7)"), "{sql}");
    }
}
