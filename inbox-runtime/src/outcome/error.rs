//! The error of a handler: what it says, whether to try again, and which database fault lies beneath it.

use std::{any::Any, error::Error, fmt, sync::Arc, time::Duration};

use crate::{
    contain::{self, contain},
    error_chain,
};

use crate::excerpt::excerpt;

type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Why a handler failed.
///
/// Made by `?` from everything that becomes a `Box<dyn Error + Send + Sync>`: `sqlx::Error`, `anyhow::Error`,
/// `eyre::Report`, `&str`, your own error types. A failed message is redelivered after the handler's back-off until its
/// attempts are used up; [`permanent`](Self::permanent) and [`retry_after`](Self::retry_after) say otherwise.
///
/// The runtime looks for a database error along [`source()`](Error::source), because a deadlock or a serialization failure
/// gets a fresh transaction at once and a missing table is waited for: an error type of your own must keep its source.
/// Whether the handler's own connection is lost the runtime finds out by itself, whatever the error says; `permanent` and
/// `retry_after` win over every code.
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
    retry: RetryDecision,
    text: String,
    chain: Vec<String>,
    fault: Option<DatabaseFault>,
}

/// Whether a failed message gets another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// After the handler's back-off.
    Backoff,
    /// After this time.
    After(Duration),
    Never,
}

/// A database error beneath a handler's error. Which database that was is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseFault {
    /// A database answered.
    Answer {
        /// An SQLSTATE, or SQLite's extended code in decimal.
        code: String,
        /// What it said. Only SQLite's texts, which are the same in every language, may decide anything.
        text: String,
    },
    /// A database could not be asked: no connection, or a broken one.
    Connection,
}

impl HandlerError {
    /// An error that no further attempt can mend: the message is dead-lettered at once.
    #[must_use]
    pub fn permanent<E>(error: E) -> Self
    where
        E: Into<BoxError> + 'static,
    {
        Self::from(error).with(RetryDecision::Never)
    }

    /// An error after which the message is redelivered after `delay`, in place of the handler's back-off. It counts as an
    /// attempt.
    #[must_use]
    pub fn retry_after<E>(delay: Duration, error: E) -> Self
    where
        E: Into<BoxError> + 'static,
    {
        Self::from(error).with(RetryDecision::After(delay))
    }

    fn with(mut self, retry: RetryDecision) -> Self {
        self.retry = retry;
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

    pub(crate) fn retry_decision(&self) -> RetryDecision {
        self.retry
    }

    pub(crate) fn fault(&self) -> Option<&DatabaseFault> {
        self.fault.as_ref()
    }

    /// Reads what there is to know of an error, each method of which may panic.
    fn read(error: &(dyn Error + 'static)) -> Self {
        let mut fault = None;
        let mut texts = error_chain::chain(error).map(|error| match error {
            Ok(error) => {
                fault = fault
                    .take()
                    .or_else(|| contain(|| DatabaseFault::of(error)).ok().flatten());
                error_chain::error_text(error)
            }
            Err(panic) => error_chain::no_source(&panic),
        });
        let text = texts.next().unwrap_or_default();
        let chain = texts.collect();
        Self {
            retry: RetryDecision::Backoff,
            text,
            chain,
            fault,
        }
    }

    /// Reads a report of anyhow or eyre: a box would hide its chain.
    fn read_report(error: &dyn Any) -> Option<Self> {
        #[cfg(feature = "anyhow")]
        if let Some(report) = error.downcast_ref::<anyhow::Error>() {
            return Some(Self::read(report.as_ref()));
        }
        #[cfg(feature = "eyre")]
        if let Some(report) = error.downcast_ref::<eyre::Report>() {
            return Some(Self::read(report.as_ref()));
        }
        let _ = error;
        None
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
        Self::of_database(&**error.downcast_ref::<Box<dyn sqlx::error::DatabaseError>>()?)
    }

    fn of_sqlx(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Database(error) => Self::of_database(&**error),
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

    fn of_database(error: &dyn sqlx::error::DatabaseError) -> Option<Self> {
        Some(Self::Answer {
            code: error.code()?.into_owned(),
            text: error.message().to_owned(),
        })
    }
}

impl<E> From<E> for HandlerError
where
    E: Into<BoxError> + 'static,
{
    fn from(error: E) -> Self {
        if let Some(read) = Self::read_report(&error) {
            contain::dispose("the error of a handler", error);
            return read;
        }
        let error: BoxError = error.into();
        let read = Self::read(&*error);
        contain::dispose("the error of a handler", error);
        read
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
            .field("retry", &self.retry)
            .field("error", &self.report())
            .finish_non_exhaustive()
    }
}
