//! Reading, discarding and replaying dead letters.

use std::sync::Arc;

use crate::{
    consumer::replay::REQUESTED,
    inbox::erased::drivers,
    store::{DeadLetter, IntoStore, Records, Store, StoreError, StoreSettings},
};

/// The dead letters in the database of that pool.
///
/// ```no_run
/// # #[cfg(feature = "sqlite")]
/// # async fn example(pool: inbox_runtime::sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// use inbox_runtime::{DeadLetterQuery, dead_letters};
///
/// let letters = dead_letters(&pool);
/// for letter in letters.list(DeadLetterQuery::default().group("billing")).await? {
///     println!("{} {}: {}", letter.id, letter.handler, letter.error);
///     letters.replay(letter.id).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn dead_letters<P: IntoStore + Clone>(pool: &P) -> DeadLetters {
    DeadLetters { records: records(pool) }
}

/// What the database of that pool keeps beside the inbox.
pub(crate) fn records<P: IntoStore + Clone>(pool: &P) -> Arc<dyn Records> {
    pool.clone().into_store(StoreSettings::default()).records()
}

/// The dead letters of a database, from [`dead_letters`].
#[derive(Clone, Debug)]
pub struct DeadLetters {
    records: Arc<dyn Records>,
}

impl DeadLetters {
    /// The dead letters that `query` selects, oldest first.
    ///
    /// # Errors
    ///
    /// When the database can't be read.
    pub async fn list(&self, query: DeadLetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        self.records
            .dead_letters(query.group.as_deref(), query.after, query.limit)
            .await
    }

    /// One dead letter, if it exists.
    ///
    /// # Errors
    ///
    /// When the database can't be read.
    pub async fn get(&self, id: i64) -> Result<Option<DeadLetter>, StoreError> {
        self.records.dead_letter(id).await
    }

    /// Deletes a dead letter for good. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// When the database can't be written.
    pub async fn discard(&self, id: i64) -> Result<bool, StoreError> {
        self.records.delete_dead_letter(id).await
    }

    /// Requests that a dead letter is handled again, with all its attempts before it. Returns whether it existed.
    ///
    /// A running inbox that has the handler replays it: at once in this process, within five seconds in others. On success the
    /// dead letter is deleted; if it fails for good again, it is dead-lettered again. (Under `at_most_once` it is deleted
    /// before the handler runs.) If the process dies during the replay, it is replayed again after the handler's timeout and
    /// 30 seconds more. Until then it shows as [`Replaying`](crate::DeadLetterStatus::Replaying), with
    /// [`replay_requested_at`](DeadLetter::replay_requested_at). A second request makes a replay that waits for its back-off
    /// run at once, and doesn't disturb one that is under way.
    ///
    /// A message whose effects exist is a duplicate, by its row in `inbox_events`. The inbox deletes none of these rows.
    /// Whoever does must keep those whose ids have dead letters, or a replay makes their effects once more.
    ///
    /// The handler of a letter may be linked into another program only; a log line says so, and the replay waits. If no
    /// running program takes it, the [health](crate::Health::warnings) of every inbox on the database says so after half a
    /// minute: the handler may have been renamed.
    ///
    /// # Errors
    ///
    /// When the database can't be written.
    pub async fn replay(&self, id: i64) -> Result<bool, StoreError> {
        let Some((group, handler)) = self.records.request_replay(id).await? else {
            return Ok(false);
        };
        if !is_linked(&group, &handler) {
            tracing::warn!(
                group,
                handler,
                "the handler of a dead letter to be replayed is not linked into this program; the replay waits for a program \
                 that has it"
            );
        }
        REQUESTED.notify_waiters();
        Ok(true)
    }
}

/// Whether this program has the handler.
fn is_linked(group: &str, handler: &str) -> bool {
    let entries = drivers().into_iter().flat_map(|kind| kind.entries());
    entries
        .map(|entry| entry.meta())
        .any(|meta| meta.group == group && meta.name == handler)
}

/// Which dead letters to list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct DeadLetterQuery {
    group: Option<String>,
    after: i64,
    limit: u32,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        Self {
            group: None,
            after: 0,
            limit: 100,
        }
    }
}

impl DeadLetterQuery {
    /// Those of one group (default: of all).
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Those whose number is above this one, for the next page (default 0).
    pub fn after(mut self, id: i64) -> Self {
        self.after = id;
        self
    }

    /// At most so many (default 100).
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }
}
