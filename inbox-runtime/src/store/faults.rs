//! What a handler's database error means. Its store tells, but that something is missing is asked of every database: a handler
//! may use another one than its store's, and one without a transaction has none.

use super::{FaultClass, Store};
use crate::outcome::DatabaseFault;

/// Whether an answer, by its code and its text, says that something doesn't exist that the program needs, or may not be used:
/// a table, a column, a schema, a function, a right.
type IsMissing = fn(code: &str, text: &str) -> bool;

/// A row for each database. The codes of one are none of another: SQLSTATEs have five characters, those that are all digits
/// are no result codes of SQLite's that are asked for here.
const DATABASES: &[IsMissing] = &[
    #[cfg(feature = "postgres")]
    super::postgres::is_missing,
    #[cfg(feature = "sqlite")]
    super::sqlite::is_missing,
];

/// What the error means to a handler of that store, given that its transaction has been rolled back.
pub(crate) fn classify(store: &impl Store, fault: &DatabaseFault) -> FaultClass {
    if is_deployment(fault) {
        FaultClass::Deployment
    } else {
        store.classify(fault)
    }
}

fn is_deployment(fault: &DatabaseFault) -> bool {
    match fault {
        DatabaseFault::Answer { code, text } => DATABASES.iter().any(|is_missing| is_missing(code, text)),
        DatabaseFault::Connection => false,
    }
}

#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn each_database_names_what_is_missing() {
        for (code, text, missing) in [
            ("42P01", "relation \"effects\" does not exist", true),
            ("42501", "permission denied for table effects", true),
            ("25006", "cannot execute INSERT in a read-only transaction", true),
            ("42601", "syntax error at or near \"SELEC\"", false),
            ("23505", "no such table: effects", false),
            ("1", "no such table: effects", true),
            ("1", "table effects has no column named amount", true),
            ("1", "near \"SELEC\": syntax error", false),
            ("1555", "UNIQUE constraint failed: effects.id", false),
        ] {
            let fault = DatabaseFault::Answer {
                code: code.to_owned(),
                text: text.to_owned(),
            };
            assert_eq!(is_deployment(&fault), missing, "{code} {text}");
        }
        assert!(!is_deployment(&DatabaseFault::Connection));
    }
}
