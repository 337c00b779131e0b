//! The error of a handler: what it says, whether to try again, and which database fault lies beneath it.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::excerpt::excerpt;

type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Why a handler failed.
///
/// Made by `?` from everything that becomes a `Box<dyn Error + Send + Sync>`: `sqlx::Error`, `anyhow::Error`,
/// `eyre::Report`, `&str`, your own error types. A failed message comes again after the handler's back-off until its
/// attempts are used up; [`permanent`](Self::permanent) and [`retry_after`](Self::retry_after) say otherwise.
///
/// The runtime looks for a database error along [`source()`](Error::source), because trouble of the database (a lost
/// connection, a deadlock) is not the message's fault and is no attempt: an error type of your own must keep its source.
/// (`#[error(transparent)]` over a `sqlx::Error` lets an answer of the database through, but hides a connection that could
/// not be had; `#[source]` and `#[from]` with a text of their own hide nothing.)
/// Inside an `anyhow::Error` or an `eyre::Report` the chain is seen with the feature of that name.
///
/// Like `anyhow::Error` this type does not implement [`Error`] itself, which is what makes the conversion possible.
///
/// ```
/// use std::time::Duration;
/// use inbox_runtime::HandlerError;
///
/// fn charge(amount: i64) -> Result<(), HandlerError> {
///     if amount < 0 {
///         return Err(HandlerError::permanent("the amount is negative"));
///     }
///     let rate: f64 = "1.25".parse()?;
///     if rate > 2.0 {
///         return Err(HandlerError::retry_after(Duration::from_secs(60), "the rate is out of range"));
///     }
///     Ok(())
/// }
/// assert!(charge(1).is_ok());
/// assert_eq!(charge(-1).unwrap_err().to_string(), "the amount is negative");
/// ```
pub struct HandlerError {
    verdict: Verdict,
    text: String,
    chain: Vec<String>,
    fault: Option<DatabaseFault>,
}

/// What a failed message deserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another attempt, after the handler's back-off.
    Retry,
    /// Another attempt, after this time.
    RetryAfter(Duration),
    /// None.
    Permanent,
}

/// A database error beneath a handler's error, reduced to what a decision may rest on: never its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseFault {
    /// The database answered with this code (an SQLSTATE, or SQLite's extended code in decimal).
    Code(Option<String>),
    /// The database could not be asked: no connection, or a broken one.
    Connection,
}

impl HandlerError {
    /// An error that no further attempt can mend: the message goes to the dead letters at once.
    #[must_use]
    pub fn permanent<E>(error: E) -> Self
    where
        E: Into<BoxError> + 'static,
    {
        Self::from(error).with(Verdict::Permanent)
    }

    /// An error after which the message comes again in `delay`, in place of the handler's back-off. It counts as an
    /// attempt.
    #[must_use]
    pub fn retry_after<E>(delay: Duration, error: E) -> Self
    where
        E: Into<BoxError> + 'static,
    {
        Self::from(error).with(Verdict::RetryAfter(delay))
    }

    fn with(mut self, verdict: Verdict) -> Self {
        self.verdict = verdict;
        self
    }

    /// The text of the error and of everything beneath it, outermost first.
    pub fn chain(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.text.as_str()).chain(self.chain.iter().map(String::as_str))
    }

    /// The whole chain in one line, joined by `: `, without the repetitions that transparent wrappers make. At most 8 KiB of
    /// it: what was cut is said at the end.
    #[must_use]
    pub fn report(&self) -> String {
        let mut report = String::new();
        for text in self.chain() {
            if report.is_empty() {
                report.push_str(text);
            } else if !report.ends_with(text) {
                report.push_str(": ");
                report.push_str(text);
            }
        }
        excerpt(report)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(crate) fn fault(&self) -> Option<&DatabaseFault> {
        self.fault.as_ref()
    }

    fn from_chain<'a>(chain: impl Iterator<Item = &'a (dyn Error + 'static)>) -> Self {
        let mut texts = Vec::new();
        let mut fault = None;
        for error in chain {
            fault = fault.or_else(|| DatabaseFault::of(error));
            texts.push(error.to_string());
        }
        let text = if texts.is_empty() {
            String::from("unknown error")
        } else {
            texts.remove(0)
        };
        Self {
            verdict: Verdict::Retry,
            text,
            chain: texts,
            fault,
        }
    }
}

impl DatabaseFault {
    fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        // A box or an `Arc` of an error is an error of its own, whose source is that of what is in it.
        let sqlx = error
            .downcast_ref::<sqlx::Error>()
            .or_else(|| error.downcast_ref::<Box<sqlx::Error>>().map(|error| &**error))
            .or_else(|| error.downcast_ref::<Arc<sqlx::Error>>().map(|error| &**error));
        if let Some(error) = sqlx {
            return Self::of_sqlx(error);
        }
        // `#[error(transparent)]` over a `sqlx::Error` shows the database error itself.
        let database = error.downcast_ref::<Box<dyn sqlx::error::DatabaseError>>()?;
        Some(Self::Code(database.code().map(String::from)))
    }

    /// The fault in an error of sqlx, if it is one of the database and not of its caller.
    pub(crate) fn of_sqlx(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Database(error) => Some(Self::Code(error.code().map(String::from))),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Some(Self::Connection),
            // `Protocol` too: a statement that the driver refuses (too many arguments, for one) is refused each time. Where
            // it is the connection that has gone wrong, the rollback tells.
            _ => None,
        }
    }
}

impl<E> From<E> for HandlerError
where
    E: Into<BoxError> + 'static,
{
    fn from(error: E) -> Self {
        // A box hides the chain of these two, so they are looked into before boxing.
        #[cfg(feature = "anyhow")]
        if let Some(error) = (&error as &dyn std::any::Any).downcast_ref::<anyhow::Error>() {
            return Self::from_chain(error.chain());
        }
        #[cfg(feature = "eyre")]
        if let Some(error) = (&error as &dyn std::any::Any).downcast_ref::<eyre::Report>() {
            return Self::from_chain(error.chain());
        }
        let error: BoxError = error.into();
        Self::from_chain(std::iter::successors(
            Some(&*error as &(dyn Error + 'static)),
            |&error| error.source(),
        ))
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError")
            .field("verdict", &self.verdict)
            .field("error", &self.report())
            .finish_non_exhaustive()
    }
}
