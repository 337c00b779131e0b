//! What an error of SQLite means: by the step of ours that failed, and then by its result code, without what the extended part
//! adds. Its texts, which are the same in every language, only tell which table is missing.

use crate::{
    outcome::DatabaseFault,
    store::{FaultClass, FinishError, StoreError},
};

const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const NOMEM: u32 = 7;
const READONLY: u32 = 8;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const PROTOCOL: u32 = 15;
const TOOBIG: u32 = 18;
const CONSTRAINT: u32 = 19;
const NOTADB: u32 = 26;

/// What the error of a handler's statement means.
pub(super) fn handler_fault(fault: &DatabaseFault) -> FaultClass {
    let DatabaseFault::Answer { code, text } = fault else {
        return FaultClass::Suspect;
    };
    match code.parse::<u32>().map(primary) {
        // BUSY and LOCKED are of a database that the handler has attached, since it holds the lock of its own.
        Ok(BUSY | LOCKED | NOMEM | READONLY | IOERR | CORRUPT | FULL | CANTOPEN | PROTOCOL | NOTADB) => {
            FaultClass::Suspect
        }
        _ if is_missing(code, text) => FaultClass::Deployment,
        _ => FaultClass::Handler,
    }
}

/// Whether an answer says that a table, a column or a function doesn't exist. There is one code for every statement that can't
/// be prepared.
pub(in crate::store) fn is_missing(code: &str, text: &str) -> bool {
    let missing = ["no such table", "no such column", "no such function"];
    code == "1" && (missing.iter().any(|start| text.starts_with(start)) || text.contains("has no column named"))
}

/// The error of one of our own statements. A lock is never about one message, since it is one of the whole file.
pub(super) fn own_statement(error: sqlx::Error) -> StoreError {
    let answer = error.as_database_error().map(sqlx::error::DatabaseError::message);
    if answer.is_some_and(|text| text.contains("no such table") && text.contains("inbox_")) {
        StoreError::TablesMissing(Box::new(error))
    } else {
        unavailable(error)
    }
}

/// The error of a commit. A deferred constraint leaves the transaction open; it is rolled back when the connection closes.
pub(super) fn commit(error: sqlx::Error) -> FinishError {
    match code(&error) {
        Some(CONSTRAINT) => FinishError::Refused(error),
        _ => unknown_outcome(&error),
    }
}

/// The error of writing what the handler has published: the message's, or the file's own trouble.
pub(super) fn not_written(error: sqlx::Error) -> FinishError {
    match code(&error) {
        Some(CONSTRAINT | TOOBIG) => FinishError::Refused(error),
        _ => FinishError::Lost(format!("what was published could not be written: {error}")),
    }
}

/// The error of a commit that says nothing about its outcome.
pub(super) fn unknown_outcome(error: &sqlx::Error) -> FinishError {
    FinishError::Lost(format!("the outcome of the commit is unknown: {error}"))
}

pub(super) fn unavailable(error: sqlx::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// Whether somebody else holds the lock.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(BUSY | LOCKED))
}

/// Whether the file can't be opened.
pub(super) fn cannot_open(error: &sqlx::Error) -> bool {
    code(error) == Some(CANTOPEN)
}

/// Whether waiting may help after an error at the start.
pub(super) fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Configuration(_) | sqlx::Error::PoolClosed => false,
        // CANTOPEN is of a journal beside the file. Not ERROR, CORRUPT and NOTADB.
        sqlx::Error::Database(_) => matches!(
            code(error),
            Some(BUSY | LOCKED | NOMEM | READONLY | IOERR | FULL | CANTOPEN | PROTOCOL)
        ),
        _ => true,
    }
}

/// The primary result code.
fn code(error: &sqlx::Error) -> Option<u32> {
    let code = error.as_database_error()?.code()?;
    code.parse().ok().map(primary)
}

const fn primary(code: u32) -> u32 {
    code & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_handlers_statement_tells_an_outage_from_a_wrong_statement() {
        let answer = |code: &str, text: &str| DatabaseFault::Answer {
            code: code.to_owned(),
            text: text.to_owned(),
        };
        for (fault, class) in [
            (DatabaseFault::Connection, FaultClass::Suspect),
            (answer("5", "database is locked"), FaultClass::Suspect),
            // IOERR_WRITE.
            (answer("778", "disk I/O error"), FaultClass::Suspect),
            (answer("13", "database or disk is full"), FaultClass::Suspect),
            (answer("1", "no such table: effects"), FaultClass::Deployment),
            (answer("1", "near \"SELEC\": syntax error"), FaultClass::Handler),
            // CONSTRAINT_PRIMARYKEY.
            (answer("1555", "UNIQUE constraint failed"), FaultClass::Handler),
        ] {
            assert_eq!(handler_fault(&fault), class, "{fault:?}");
        }
    }
}
