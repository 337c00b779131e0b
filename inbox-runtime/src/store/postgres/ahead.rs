//! The end of a transaction in one simple query: reset, seal, commit, and the next message's claim behind it.
//!
//! A simple query takes no arguments, so what comes from a message stands in it as letters, digits and a few signs that mean
//! nothing to a parser, or else as hexadecimal digits.

use std::{fmt::Write, future::Future, time::Duration};

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row};

use super::statements::{BEGIN, claim_sql};
use crate::store::Claim;

/// The message whose claim was made ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    group: String,
    message_id: String,
}

impl Ahead {
    pub(super) fn of(claim: &Claim<'_>) -> Self {
        Self {
            group: claim.group.to_owned(),
            message_id: claim.message_id.to_owned(),
        }
    }

    /// Whether this is that claim.
    pub(super) fn is(&self, claim: Option<&Claim<'_>>) -> bool {
        claim.is_some_and(|claim| claim.group == self.group && claim.message_id == self.message_id)
    }
}

/// How many statements are done when the transaction is sealed, when it is committed, and when the next one has begun.
const SEALED: usize = statements(RESET) + 1;
const COMMITTED: usize = SEALED + 1;
const BEGUN: usize = COMMITTED + 1;

/// Which statement failed: only with it an error's code has a meaning.
#[derive(Debug)]
pub(super) enum CommitError {
    /// The seal, or what stands before it: nothing is committed.
    Seal(sqlx::Error),
    /// The commit.
    Commit(sqlx::Error),
}

impl CommitError {
    pub(super) fn into_inner(self) -> sqlx::Error {
        match self {
            Self::Seal(error) | Self::Commit(error) => error,
        }
    }
}

/// What was answered to a commit that goes on to the next message.
#[derive(Debug)]
pub(super) struct Answer {
    /// The handler left something on the session that the seal can't undo.
    pub(super) dirty: bool,
    pub(super) next: Begun,
}

/// What has become of the transaction behind the commit.
#[derive(Debug)]
pub(super) enum Begun {
    /// None was asked for, or it is open and has claimed nothing because nothing was asked or because there is a row.
    Unclaimed,
    /// It is open and has made the claim; this is its id.
    Claimed(String),
    /// It could not be begun, or its claim failed.
    Failed(sqlx::Error),
    /// Its claim has waited for too long, and was cancelled.
    Cancelled,
}

/// A commit, and what is to be begun behind it.
pub(super) struct Request<'a> {
    pub(super) seal: &'a str,
    /// Whether the next transaction is begun.
    pub(super) begins: bool,
    pub(super) claim: Option<&'a Claim<'a>>,
    /// The table of the inbox, as it stands in a statement.
    pub(super) events: &'a str,
    /// Whether the session has prepared the claim; it has when this is done.
    pub(super) prepared: &'a mut bool,
    /// How long the claim waits for another transaction.
    pub(super) wait: Duration,
}

/// Resets, seals, commits and begins the next transaction. One error is of the seal, the other of the commit; whatever comes
/// behind them is no trouble of this transaction.
///
/// The server answers all statements together, so that a claim that waits for somebody holds back the answer to the commit.
/// `cancel` is asked each time `wait` has passed: it cancels what runs only if that is behind the commit, and says whether it has.
pub(super) async fn commit_and_begin<F: Future<Output = bool>>(
    conn: &mut PgConnection,
    request: Request<'_>,
    cancel: impl Fn() -> F,
) -> Result<Answer, CommitError> {
    let prepares = request.claim.is_some() && !*request.prepared;
    // Zero would ask all the time.
    let wait = request.wait.max(Duration::from_millis(1));
    let mut answers = sqlx::raw_sql(AssertSqlSafe(request.text())).fetch_many(conn);
    let (mut done, mut sealed, mut xid, mut cancelled) = (0, None, None, false);
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
                *request.prepared |= prepares && done == BEGUN + 1;
            }
            Ok(Some(Either::Right(row))) if done < SEALED => {
                sealed = Some(row.try_get(0).map_err(CommitError::Seal)?);
            }
            Ok(Some(Either::Right(row))) => xid = row.try_get(0).ok(),
            Err(error) if done < SEALED => return Err(CommitError::Seal(error)),
            Err(error) if done < COMMITTED => return Err(CommitError::Commit(error)),
            Err(error) => break Begun::Failed(error),
            Ok(None) if done >= COMMITTED => break xid.map_or(Begun::Unclaimed, Begun::Claimed),
            // The end of the answer to something that the handler has left on the connection.
            Ok(None) => break Begun::Unclaimed,
        }
    };
    match sealed {
        Some(dirty) if done >= COMMITTED => {
            let next = if cancelled { Begun::Cancelled } else { next };
            Ok(Answer { dirty, next })
        }
        _ => Err(CommitError::Seal(sqlx::Error::Protocol(
            "the answer belongs to a statement of the handler's".to_owned(),
        ))),
    }
}

impl Request<'_> {
    fn text(&self) -> String {
        let mut sql = String::with_capacity(512);
        sql.push_str(RESET);
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
                claim_sql(self.events)
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

/// What stands before a seal on a session that is the worker's own: what the handler has left on it (settings, cursors, channels)
/// is undone in its own transaction. The seal sets again what is not the handler's.
pub(super) const RESET: &str = "RESET ALL; CLOSE ALL; UNLISTEN *; ";

/// How many statements stand in a text, each of which ends with a semicolon.
const fn statements(sql: &str) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < sql.len() {
        count += (sql.as_bytes()[at] == b';') as usize;
        at += 1;
    }
    count
}

/// A text of a message's: as it is if nothing in it can mean anything to a parser, whatever the server's settings, else in digits.
fn push_text(sql: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.:/~@+=, ".contains(&c);
    if text.bytes().all(plain) {
        sql.push('\'');
        sql.push_str(text);
        sql.push('\'');
        return;
    }
    sql.push_str("convert_from(decode('");
    for byte in text.bytes() {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push_str("', 'hex'), 'UTF8')");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Fingerprint;

    #[test]
    fn nothing_of_a_message_stands_in_the_text_that_a_parser_could_take_for_its_own() {
        let claim = Claim {
            group: "billing",
            message_id: "a'); DROP TABLE inbox_events; --\\\u{e9}",
            fingerprint: Fingerprint::from_i64(-7),
        };
        let request = Request {
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
