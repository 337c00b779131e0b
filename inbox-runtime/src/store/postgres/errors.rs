//! What an error of PostgreSQL means: by the step of ours that failed, and then by its SQLSTATE; never by its text, which
//! depends on the server's language.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::store::{FaultClass, StoreError};

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A statement of the handler's, after which the connection was alive.
    Handler,
    /// The claim of a message.
    Claim,
    /// A look at the inbox row of a message.
    Lookup,
    /// The write that shows whether the database can be used.
    Probe,
    /// Another statement of ours: BEGIN, attempts, dead letters.
    Own,
    /// The writing of what the handler has published: nothing has been committed.
    Outbox,
    /// The seal, or what stands before it: nothing has been committed.
    Seal,
    /// The commit.
    Commit,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A lock was not granted in time.
    Locked,
    /// The database can't store the message's own values: a character that its encoding lacks, a text that is too long for
    /// the column or the index.
    Unstorable,
    /// A table of the inbox doesn't exist.
    TablesMissing,
    /// A fresh transaction may succeed at once.
    Retry,
    /// A fresh transaction on another connection may succeed at once: a plan is out of date, a prepared statement doesn't
    /// exist or exists twice.
    Stale,
    /// The prepared seal doesn't exist any more.
    Unprepared,
    /// The transaction had been aborted: the handler ignored the error of a statement.
    Aborted,
    /// The handler has ended the transaction itself.
    Ended,
    /// The server refused the statement for good.
    Refused,
    /// The server's own trouble, unless the handler has asked for it.
    Suspect,
    /// No answer, or none that says anything about the transaction.
    Lost,
}

/// What an error of that step means.
pub(super) fn meaning(step: Step, error: &sqlx::Error) -> Meaning {
    let code = code(error).unwrap_or_default();
    let of_ours = || {
        error
            .as_database_error()
            .is_some_and(|answer| answer.message().contains("inbox_"))
    };
    match by_code(step, &code, is_definite(error)) {
        // A trigger of somebody else's may miss a table, too. The name of a table is the same in every language.
        Meaning::TablesMissing if !of_ours() => Meaning::Lost,
        meaning => meaning,
    }
}

/// `is_definite`: the server lives on, so that it knows about the transaction.
fn by_code(step: Step, code: &str, is_definite: bool) -> Meaning {
    match (step, code) {
        (Step::Claim | Step::Lookup, "22021" | "22P05" | "22001" | "54000") => Meaning::Unstorable,
        (Step::Claim | Step::Lookup | Step::Probe | Step::Own, "42P01") => Meaning::TablesMissing,
        _ if !is_definite => Meaning::Lost,
        // A role's `lock_timeout` or `statement_timeout` may be shorter than `lock_wait`.
        (Step::Claim, "55P03" | "57014") | (Step::Probe, "55P03") => Meaning::Locked,
        (Step::Seal | Step::Outbox, "25P02") => Meaning::Aborted,
        // Only the seal of another transaction divides by zero.
        (Step::Seal, "22012") => Meaning::Ended,
        (Step::Seal | Step::Commit, "26000") => Meaning::Unprepared,
        // What the handler has left on the session: a COPY without an end, for one.
        (Step::Seal, _) => Meaning::Lost,
        // Serialization failure, deadlock.
        (_, "40001" | "40P01") => Meaning::Retry,
        (_, "0A000" | "26000" | "42P05") => Meaning::Stale,
        (Step::Handler | Step::Commit, "55P03") => Meaning::Retry,
        (Step::Commit, _) => Meaning::Refused,
        // What can't be stored, or breaks a rule of the table's owner. A table or a right that is missing is no message's fault.
        (Step::Outbox, code) if matches!(code.get(..2), Some("22" | "23" | "54" | "P0")) => Meaning::Refused,
        (Step::Handler, code) => by_class(code),
        (Step::Claim | Step::Lookup | Step::Probe | Step::Own | Step::Outbox, _) => Meaning::Lost,
    }
}

/// Connection, authorization, resources, operator intervention except a cancelled query, system: it can't be about this
/// connection, which lives, but the handler may have used another one.
fn by_class(code: &str) -> Meaning {
    match code.get(..2) {
        Some("08" | "28" | "53" | "58") => Meaning::Suspect,
        Some("57") if code != "57014" => Meaning::Suspect,
        _ => Meaning::Refused,
    }
}

/// Whether an answer says that a table, a column, a schema or a function doesn't exist, that a right is missing, or that
/// the server takes no writes.
pub(in crate::store) fn is_missing(code: &str, _text: &str) -> bool {
    matches!(code, "42P01" | "42703" | "3F000" | "42883" | "42501" | "25006")
}

/// What the code of a handler's statement means, after which the connection was alive.
pub(super) fn handler_fault(code: &str) -> FaultClass {
    match by_code(Step::Handler, code, true) {
        _ if is_missing(code, "") => FaultClass::Deployment,
        Meaning::Retry => FaultClass::Retry,
        Meaning::Stale => FaultClass::Stale,
        Meaning::Suspect => FaultClass::Suspect,
        _ => FaultClass::Handler,
    }
}

/// The error of one of our own steps.
pub(super) fn store_error(step: Step, error: sqlx::Error) -> StoreError {
    match meaning(step, &error) {
        Meaning::Locked => StoreError::Locked(Box::new(error)),
        Meaning::Unstorable => StoreError::Message(Box::new(error)),
        Meaning::TablesMissing => StoreError::TablesMissing(Box::new(error)),
        Meaning::Retry | Meaning::Stale => StoreError::Retry(Box::new(error)),
        _ => unavailable(error),
    }
}

/// The error of a statement of ours that is about no message.
pub(super) fn own_statement(error: sqlx::Error) -> StoreError {
    store_error(Step::Own, error)
}

pub(super) fn unavailable(error: sqlx::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// Whether the connection can go on after a rollback: the server lives, and the prepared statements are up to date.
pub(super) fn spares_connection(error: &sqlx::Error) -> bool {
    is_definite(error) && by_code(Step::Own, &code(error).unwrap_or_default(), true) != Meaning::Stale
}

/// Whether the server answered with an error and lives on, so that what it says of the transaction is the truth.
pub(super) fn is_definite(error: &sqlx::Error) -> bool {
    severity(error) == Some(PgSeverity::Error)
}

/// Whether the server ended the session because of what the handler did with it: it was idle in its transaction for too long,
/// or the transaction took too long.
pub(super) fn is_ended_session(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("25P03" | "25P04")) && severity(error) == Some(PgSeverity::Fatal)
}

/// Whether waiting may help after an error at the start.
pub(super) fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        // A certificate that isn't trusted, a server without TLS, options that exclude one another.
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolClosed => false,
        // What rustls says of a certificate.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::InvalidData,
        sqlx::Error::Database(answer) => match answer.code().as_deref().and_then(|code| code.get(..2)) {
            // Feature not supported, wrong authorization, unknown database or schema, a wrong or forbidden statement, a
            // program's own error, a failure of the same data each time.
            Some("0A" | "22" | "23" | "28" | "3D" | "3F" | "42" | "P0") => false,
            _ => true,
        },
        _ => true,
    }
}

/// The SQLSTATE of an answer of the server.
fn code(error: &sqlx::Error) -> Option<String> {
    let answer = error.as_database_error()?;
    answer.code().map(String::from)
}

fn severity(error: &sqlx::Error) -> Option<PgSeverity> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    Some(error.severity())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn f04_errors_of_a_handlers_statement_are_sorted_by_their_code() {
        for (class, codes) in [
            (FaultClass::Retry, &["40001", "40P01", "55P03"][..]),
            (FaultClass::Stale, &["0A000", "26000", "42P05"]),
            (
                FaultClass::Deployment,
                &["42P01", "42703", "3F000", "42883", "42501", "25006"],
            ),
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
                assert_eq!(handler_fault(code), class, "{code}");
            }
        }
    }

    #[test]
    fn the_step_that_failed_decides_what_a_code_means() {
        use Meaning::*;
        use Step::*;
        for (code, meanings) in [
            // Serialization failure.
            ("40001", [(Claim, Retry), (Own, Retry), (Seal, Lost), (Commit, Retry)]),
            // Lock not available.
            ("55P03", [(Claim, Locked), (Own, Lost), (Seal, Lost), (Commit, Retry)]),
            // Query canceled.
            ("57014", [(Claim, Locked), (Own, Lost), (Seal, Lost), (Commit, Refused)]),
            // Division by zero.
            ("22012", [(Claim, Lost), (Own, Lost), (Seal, Ended), (Commit, Refused)]),
            // In failed transaction.
            (
                "25P02",
                [(Claim, Lost), (Own, Lost), (Seal, Aborted), (Commit, Refused)],
            ),
            // Unknown prepared statement.
            (
                "26000",
                [(Claim, Stale), (Own, Stale), (Seal, Unprepared), (Commit, Unprepared)],
            ),
            // Character not in the encoding.
            (
                "22021",
                [
                    (Claim, Unstorable),
                    (Lookup, Unstorable),
                    (Own, Lost),
                    (Commit, Refused),
                ],
            ),
            // Unknown table.
            (
                "42P01",
                [
                    (Claim, TablesMissing),
                    (Probe, TablesMissing),
                    (Seal, Lost),
                    (Commit, Refused),
                ],
            ),
            // Disk full.
            (
                "53100",
                [(Handler, Suspect), (Own, Lost), (Seal, Lost), (Commit, Refused)],
            ),
        ] {
            for (step, meaning) in meanings {
                assert_eq!(by_code(step, code, true), meaning, "{code} at {step:?}");
            }
            for step in [Seal, Commit] {
                assert_eq!(
                    by_code(step, code, false),
                    Lost,
                    "{code} of a session that ends, at {step:?}"
                );
            }
        }
    }

    #[test]
    fn g63_transient_errors_at_the_start_are_told_from_lasting_ones() {
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
            io::ErrorKind::UnexpectedEof,
            // No such host (yet).
            io::ErrorKind::Other,
            // No such socket (yet).
            io::ErrorKind::NotFound,
        ] {
            assert!(is_transient(&sqlx::Error::Io(kind.into())), "{kind}");
        }
        assert!(is_transient(&sqlx::Error::PoolTimedOut));
        for error in [
            sqlx::Error::Tls("server does not support TLS".into()),
            sqlx::Error::Configuration("no".into()),
            sqlx::Error::Io(io::ErrorKind::InvalidData.into()),
            sqlx::Error::PoolClosed,
        ] {
            assert!(!is_transient(&error), "{error}");
        }
    }
}
