//! The text of an error, without what belongs to the source code of a database server.

use std::error::Error;

/// The text of one error. sqlx puts the line of PostgreSQL's own source file behind its message (`… does not exist at line
/// 1452`), which reads as a line of the statement: it is left out, also where another error's text has it inside.
pub(crate) fn text_of(error: &(dyn Error + 'static)) -> String {
    #[cfg_attr(
        not(feature = "postgres"),
        allow(unused_mut, reason = "only PostgreSQL's are changed")
    )]
    let mut text = error.to_string();
    #[cfg(feature = "postgres")]
    for answer in std::iter::successors(Some(error), |&error| error.source()).filter_map(answer) {
        text = text.replace(&answer.to_string(), answer.message());
    }
    text
}

/// PostgreSQL's answer, if the error is one or holds one itself.
#[cfg(feature = "postgres")]
fn answer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a sqlx::postgres::PgDatabaseError> {
    use std::sync::Arc;

    use sqlx::error::DatabaseError;

    if let Some(answer) = error.downcast_ref() {
        return Some(answer);
    }
    // A box or an `Arc` of an error is an error of its own, whose source is that of what is in it.
    let sqlx = error
        .downcast_ref::<sqlx::Error>()
        .or_else(|| error.downcast_ref::<Box<sqlx::Error>>().map(|error| &**error))
        .or_else(|| error.downcast_ref::<Arc<sqlx::Error>>().map(|error| &**error));
    let database = match sqlx {
        Some(sqlx::Error::Database(database)) => &**database,
        _ => &**error.downcast_ref::<Box<dyn DatabaseError>>()?,
    };
    database.try_downcast_ref()
}
