//! Messages that their handler could not handle, and their replays: the table `inbox_dead_letters`.

use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;

use super::{
    error::StoreError,
    rows::{DeadLetter, NewDeadLetter, ReplayToken, Stranded},
};

/// The dead letters of a database. Every method is a transaction of its own.
pub trait DeadLetterStore: fmt::Debug + Send + Sync {
    /// Writes a dead letter, or overwrites the one of that message. Returns false, and writes nothing, if it is the letter
    /// of a replay whose lease has been taken by another.
    fn write_dead_letter<'a>(&'a self, letter: &'a NewDeadLetter) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// One dead letter.
    fn dead_letter(&self, id: i64) -> BoxFuture<'_, Result<Option<DeadLetter>, StoreError>>;

    /// Dead letters of a group, or of all, oldest first, whose number is above `after`.
    fn dead_letters<'a>(
        &'a self,
        group: Option<&'a str>,
        after: i64,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<DeadLetter>, StoreError>>;

    /// How many dead letters a group has, or all have.
    fn count_dead_letters<'a>(&'a self, group: Option<&'a str>) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Deletes a dead letter and its attempts. Returns whether it existed.
    fn delete_dead_letter(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Marks a dead letter to be replayed and clears its attempts, unless it is being replayed now. Returns its group and
    /// its handler, if it exists.
    fn request_replay(&self, id: i64) -> BoxFuture<'_, Result<Option<(String, String)>, StoreError>>;

    /// The groups that have dead letters which are due for a replay.
    fn groups_with_due_replays(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;

    /// Leases up to `max` dead letters of that handler that are due for a replay.
    fn lease_replays<'a>(
        &'a self,
        group: &'a str,
        handler: &'a str,
        max: usize,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Vec<(DeadLetter, ReplayToken)>, StoreError>>;

    /// Makes a leased dead letter due again after `delay`; if it stays `taken`, that renews its lease. Returns whether the
    /// lease was still that one.
    fn postpone_replay(
        &self,
        token: ReplayToken,
        taken: bool,
        delay: Duration,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes a dead letter that was replayed, unless it has been written anew. Returns whether it existed under that
    /// lease.
    fn complete_replay(&self, token: ReplayToken) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// The handlers whose dead letters have been due for a replay for that time without being leased, at most ten.
    fn stranded_replays(&self, wait: Duration) -> BoxFuture<'_, Result<Vec<Stranded>, StoreError>>;
}
