//! What an error of PostgreSQL means: from the step of ours that failed, and then from its SQLSTATE; never from its text,
//! which depends on the server's language.

use super::{ahead::CommitError, code, is_definite};
use crate::store::{FaultClass, StoreError};

/// What the failed end of a transaction means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EndMeaning {
    /// The handler ignored the error of a statement.
    Swallowed,
    /// The handler ended the transaction itself.
    Ended,
    /// A fresh transaction may succeed at once.
    Again,
    /// The server refused the commit for good: the handler's failure.
    Refused,
    /// There was no answer, or none that says what became of the transaction.
    Lost,
}

/// What an error means that stands in the way of a commit.
pub(super) fn end(error: &CommitError) -> EndMeaning {
    let (CommitError::Seal(inner) | CommitError::Commit(inner)) = error;
    if !is_definite(inner) {
        return EndMeaning::Lost;
    }
    let code = code(inner);
    match (error, code.as_deref().unwrap_or_default()) {
        (CommitError::Seal(_), "25P02") => EndMeaning::Swallowed,
        (CommitError::Seal(_), "22012") => EndMeaning::Ended,
        // The prepared seal isn't there any more.
        (CommitError::Seal(_), "26000") => EndMeaning::Again,
        // What the handler has left on the session: a COPY without an end, for one.
        (CommitError::Seal(_), _) => EndMeaning::Lost,
        (CommitError::Commit(_), code) => match handler(code) {
            FaultClass::Again | FaultClass::Stale => EndMeaning::Again,
            FaultClass::Handler | FaultClass::Deployment | FaultClass::Suspect => EndMeaning::Refused,
        },
    }
}

/// What the code of a statement of the handler's means, after which the connection was alive: so the server works, and
/// what it says is about this statement.
pub(super) fn handler(code: &str) -> FaultClass {
    match code {
        // Serialization failure, deadlock, lock not available.
        "40001" | "40P01" | "55P03" => FaultClass::Again,
        // A cached plan that a migration made useless; a prepared statement that isn't there, or is there twice.
        "0A000" | "26000" | "42P05" => FaultClass::Stale,
        // Connection, authorization, resources, operator intervention but a cancelled query, system: of this connection, which
        // lives, it can't be true, but the handler may have asked another one.
        _ => match code.get(..2) {
            Some("08" | "28" | "53" | "58") => FaultClass::Suspect,
            Some("57") if code != "57014" => FaultClass::Suspect,
            _ => FaultClass::Handler,
        },
    }
}

/// What an error means of one of our own statements: of a session that begins or claims, of the records, of a probe.
pub(super) fn own(error: sqlx::Error) -> StoreError {
    match code(&error).as_deref() {
        Some("40001" | "40P01" | "0A000" | "26000" | "42P05") if is_definite(&error) => {
            StoreError::Again(Box::new(error))
        }
        _ => StoreError::Unavailable(Box::new(error)),
    }
}

/// Whether our claim, or a look at what is claimed, failed because the database can't keep the message's own values: a
/// character that its encoding lacks, a text that is too long for the column or the index.
pub(super) fn is_of_the_message(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("22021" | "22P05" | "22001" | "54000"))
}

/// What the error of a claim means. A role's `lock_timeout` or `statement_timeout` may be shorter than `lock_wait`.
pub(super) fn claim(error: sqlx::Error) -> StoreError {
    match code(&error).as_deref() {
        Some("55P03" | "57014") if is_definite(&error) => StoreError::Locked(Box::new(error)),
        _ if is_of_the_message(&error) => StoreError::Message(Box::new(error)),
        _ => own(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f04_errors_of_a_handlers_statement_are_sorted_by_their_code() {
        for (class, codes) in [
            (FaultClass::Again, &["40001", "40P01", "55P03"][..]),
            (FaultClass::Stale, &["0A000", "26000", "42P05"]),
            (
                FaultClass::Suspect,
                &["53100", "53200", "53400", "58030", "57P01", "08006", "28P01"],
            ),
            (
                FaultClass::Handler,
                &["23505", "23503", "22012", "25P02", "42601", "57014", "P0001", "", "5"],
            ),
        ] {
            for code in codes {
                assert_eq!(handler(code), class, "{code}");
            }
        }
    }
}
