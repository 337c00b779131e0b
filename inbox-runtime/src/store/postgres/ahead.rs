//! The next message's claim in the round trip of the commit before it.
//!
//! One simple query seals, commits, begins anew and claims. A simple query takes no arguments, so what comes from a message
//! stands in it as hexadecimal digits and nothing else.

use std::{fmt::Write, time::Duration};

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row};

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

/// The claim, which a session prepares once.
const PREPARE: &str = "PREPARE inbox_claim (text, text, bigint) AS INSERT INTO inbox_events (consumer_group, message_id, \
                       fingerprint) VALUES ($1, $2, $3) ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING \
                       pg_current_xact_id()::text; ";
/// How many statements are done when the transaction is committed and the next one begun: the seal and the commit.
const COMMITTED: usize = 2;
/// And when the claim is prepared, after a `SET`.
const PREPARED: usize = COMMITTED + 2;

/// What was answered to a commit with a claim behind it.
pub(super) enum Answer {
    /// Committed, and the claim is made, by a transaction of that id.
    Claimed(String),
    /// Committed; the claim found a row, whose fingerprint wasn't asked for.
    Found,
    /// Committed; the claim failed, and its transaction with it.
    Failed(sqlx::Error),
}

/// What a claim ahead is made of.
pub(super) struct Request<'a> {
    pub(super) seal: &'a str,
    pub(super) claim: &'a Claim<'a>,
    /// Whether the session has prepared the claim; it has when this is done.
    pub(super) prepared: &'a mut bool,
    /// How long the claim waits for another transaction.
    pub(super) wait: Duration,
    /// The bound on lock waits that the handler's own statements have, in milliseconds.
    pub(super) lock_timeout: &'a str,
}

/// Seals, commits and claims. The error is one of the seal or the commit.
pub(super) async fn commit_and_claim(conn: &mut PgConnection, request: Request<'_>) -> sqlx::Result<Answer> {
    let mut answers = sqlx::raw_sql(AssertSqlSafe(request.text())).fetch_many(conn);
    let mut done = 0;
    let mut xid = None;
    loop {
        match answers.try_next().await {
            Ok(Some(Either::Left(_))) => {
                done += 1;
                *request.prepared |= done == PREPARED;
            }
            Ok(Some(Either::Right(row))) if done > COMMITTED => xid = Some(row.try_get(0)?),
            Ok(Some(Either::Right(_))) => {}
            Ok(None) => return Ok(xid.map_or(Answer::Found, Answer::Claimed)),
            Err(error) if done < COMMITTED => return Err(error),
            Err(error) => return Ok(Answer::Failed(error)),
        }
    }
}

impl Request<'_> {
    fn text(&self) -> String {
        // Zero would be for ever.
        let wait = i32::try_from(self.wait.as_millis()).unwrap_or(i32::MAX).max(1);
        let mut sql = String::with_capacity(512);
        sql.push_str(self.seal);
        let _ = write!(sql, "; COMMIT AND CHAIN; SET LOCAL lock_timeout = {wait}; ");
        if !*self.prepared {
            sql.push_str(PREPARE);
        }
        sql.push_str("EXECUTE inbox_claim (convert_from(decode('");
        push_hex(&mut sql, self.claim.group);
        sql.push_str("', 'hex'), 'UTF8'), convert_from(decode('");
        push_hex(&mut sql, self.claim.message_id);
        let _ = write!(
            sql,
            "', 'hex'), 'UTF8'), {}); SET LOCAL lock_timeout = {}",
            self.claim.fingerprint.to_i64(),
            self.lock_timeout
        );
        sql
    }
}

fn push_hex(sql: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in text.bytes() {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Fingerprint;

    #[test]
    fn nothing_of_a_message_stands_in_the_text_but_digits() {
        let claim = Claim {
            group: "billing",
            message_id: "a'); DROP TABLE inbox_events; --\\\u{e9}",
            fingerprint: Fingerprint::from_i64(-7),
        };
        let request = Request {
            seal: "SELECT 1",
            claim: &claim,
            prepared: &mut true,
            wait: Duration::ZERO,
            lock_timeout: "0",
        };
        let sql = request.text();
        assert!(!sql.contains("DROP") && !sql.contains('\\'), "{sql}");
        assert!(sql.contains("decode('62696c6c696e67', 'hex')"), "{sql}");
        assert!(sql.contains("decode('6127293b2044524f50"), "{sql}");
        assert!(sql.contains("2d2d5cc3a9'"), "{sql}");
        assert!(sql.contains(", -7)"), "{sql}");
        assert!(sql.contains("lock_timeout = 1;"), "zero would be for ever: {sql}");
    }
}
