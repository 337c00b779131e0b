//! What handlers return, and what became of a delivery.

use std::fmt;

mod error;

pub(crate) use error::RetryDecision;
pub use error::{DatabaseFault, HandlerError};

/// What became of a delivery: one word for logs, metrics, tests and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran and its transaction is committed.
    Processed,
    /// The handler ran, returned [`Handled::Skipped`], and its transaction is committed.
    Skipped,
    /// The group has handled this message before; the handler didn't run (or returned [`Handled::Duplicate`]).
    Duplicate,
    /// Another consumer is handling this message now, or holds what the claim needs; it is redelivered later.
    Locked,
    /// The handler failed; its transaction is rolled back and the message is redelivered (not under `at_most_once`).
    Failed,
    /// The message is dead-lettered: it can't be decoded, was refused for good, used up its attempts, or its handler broke
    /// the transaction.
    DeadLettered,
    /// The database or the broker failed, or the outcome of the commit is unknown; the message is handled again, and no
    /// attempt is counted.
    Deferred,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 7] = [
        Self::Processed,
        Self::Skipped,
        Self::Duplicate,
        Self::Locked,
        Self::Failed,
        Self::DeadLettered,
        Self::Deferred,
    ];

    /// The outcome as it stands in logs and metrics, in snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Processed => "processed",
            Self::Skipped => "skipped",
            Self::Duplicate => "duplicate",
            Self::Locked => "locked",
            Self::Failed => "failed",
            Self::DeadLettered => "dead_lettered",
            Self::Deferred => "deferred",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a handler did with a message that it did not fail on. In each case its writes are committed and the message is
/// acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Handled {
    /// It did its work.
    #[default]
    Processed,
    /// There was nothing to do.
    Skipped,
    /// It had done this before: for handlers that [`claim`](crate::claim) by hand.
    Duplicate,
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Self::Processed
    }
}

impl From<Handled> for Outcome {
    fn from(handled: Handled) -> Self {
        match handled {
            Handled::Processed => Self::Processed,
            Handled::Skipped => Self::Skipped,
            Handled::Duplicate => Self::Duplicate,
        }
    }
}

/// What a handler may return: `Result<(), E>` or `Result<Handled, E>`, for every `E` that
/// [`HandlerError`] can be made from.
#[diagnostic::on_unimplemented(
    message = "an inbox handler cannot return `{Self}`",
    label = "return `Result<(), E>` or `Result<Handled, E>`",
    note = "`E` is `HandlerError`, or anything that becomes a `Box<dyn Error + Send + Sync>`: `sqlx::Error`, `anyhow::Error`, your own error type"
)]
pub trait IntoOutcome: sealed::Sealed {
    /// Sorts the handler's return value.
    ///
    /// # Errors
    ///
    /// The handler's own error.
    fn into_outcome(self) -> Result<Handled, HandlerError>;
}

#[diagnostic::do_not_recommend]
impl<T, E> IntoOutcome for Result<T, E>
where
    T: Into<Handled>,
    E: Into<HandlerError>,
{
    fn into_outcome(self) -> Result<Handled, HandlerError> {
        self.map(Into::into).map_err(Into::into)
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T, E> Sealed for Result<T, E> {}
}
