//! The attempts of handlers on messages that were not simply handled: the table `inbox_attempts`.

use std::fmt;

use futures_util::future::BoxFuture;

use super::{
    claim::Fingerprint,
    error::StoreError,
    rows::{AttemptKey, AttemptLimit, BeginAttempt},
};

/// The attempts of a database. Every method is a transaction of its own, never one that holds a handler's effects.
pub trait AttemptStore: fmt::Debug + Send + Sync {
    /// Whether the group has handled that message, and its fingerprint then. An id that the database can't store was not
    /// handled.
    fn handled<'a>(
        &'a self,
        group: &'a str,
        message_id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Fingerprint>, StoreError>>;

    /// Reads what is known of a message that may have been delivered before, and if its last attempt came to an end,
    /// notes that the next one begins.
    fn begin_attempt<'a>(
        &'a self,
        key: &'a AttemptKey,
        limit: AttemptLimit,
    ) -> BoxFuture<'a, Result<BeginAttempt, StoreError>>;

    /// Counts the attempt of a [suspect](BeginAttempt::Suspect) before it is made. Returns how many are counted.
    fn count_attempt<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Undoes [`count_attempt`](Self::count_attempt) if the attempt was `counted`, else what
    /// [`begin_attempt`](Self::begin_attempt) noted.
    fn refund_attempt<'a>(&'a self, key: &'a AttemptKey, counted: bool) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Stores the error of an attempt, which has ended with it; counts it too unless it was counted before it was made.
    /// Returns the attempts so far.
    fn record_failure<'a>(
        &'a self,
        key: &'a AttemptKey,
        counted: bool,
        error: &'a str,
    ) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Deletes the attempts.
    fn clear_attempts<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>>;
}
