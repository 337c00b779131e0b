//! The text of an error and of everything beneath it, without what belongs to the source code of a database server.

use std::error::Error;

use crate::{
    contain::{contain, display},
    excerpt::excerpt,
};

/// How many errors of a chain are looked at, so that one that is its own source has an end.
const MAX_CAUSES: usize = 64;

/// An error with everything beneath it, in one line of at most 8 KiB.
pub(crate) fn text(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for error in chain(error) {
        let text = error.map_or_else(|panic| no_source(&panic), error_text);
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    excerpt(line)
}

/// The text of an error, or what its `Display` panicked with.
pub(crate) fn error_text(error: &(dyn Error + 'static)) -> String {
    contain(|| text_of(error)).unwrap_or_else(|_| display(error))
}

/// An error and everything beneath it, outermost first. The last item is the panic of a `source()`, if one panics.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = Result<&'a (dyn Error + 'static), String>> {
    let next = |last: &Result<&'a (dyn Error + 'static), String>| {
        let error = *last.as_ref().ok()?;
        contain(|| error.source()).transpose()
    };
    std::iter::successors(Some(Ok(error)), next).take(MAX_CAUSES)
}

/// What stands in the place of the errors beneath one whose `source()` panicked.
pub(crate) fn no_source(panic: &str) -> String {
    format!("(its `source()` panicked: {panic})")
}

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

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Hostile {
        source: Option<Box<Self>>,
        endless: bool,
    }

    impl fmt::Display for Hostile {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("in Display");
        }
    }

    impl Error for Hostile {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            match &self.source {
                Some(source) => Some(&**source),
                None if self.endless => Some(self),
                None => panic!("in source()"),
            }
        }
    }

    #[test]
    fn g42_every_error_of_a_chain_has_a_text() {
        let inner = Hostile {
            source: None,
            endless: false,
        };
        let outer = Hostile {
            source: Some(Box::new(inner)),
            endless: false,
        };
        let texts: Vec<_> = chain(&outer)
            .map(|error| error.map_or_else(|panic| no_source(&panic), display))
            .collect();
        let display = "(its `Display` panicked: in Display)";
        assert_eq!(texts, [display, display, "(its `source()` panicked: in source())"]);
    }

    #[test]
    fn g42_an_error_that_is_its_own_source_has_an_end() {
        let error = Hostile {
            source: None,
            endless: true,
        };
        assert_eq!(chain(&error).count(), MAX_CAUSES);
    }
}
