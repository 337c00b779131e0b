//! Reading, discarding and replaying dead letters.

use std::sync::{Arc, LazyLock};

use tokio::sync::Notify;

use crate::{
    registry::{Registration, Visitor, visit},
    store::{DeadLetter, IntoStore, Records, Store, StoreError, StoreSettings},
};

/// Notifies the replayers of this process that a replay is requested; those of others find it at their next look.
pub(crate) static REQUESTED: LazyLock<Notify> = LazyLock::new(Notify::new);

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
    DeadLetters::new(records(pool))
}

/// What the database of that pool keeps beside the inbox.
pub(crate) fn records<P: IntoStore + Clone>(pool: &P) -> Arc<dyn Records> {
    pool.clone().into_store(StoreSettings::default()).records()
}

/// The dead letters of a database, from [`dead_letters`] or [`admin::Database`](crate::admin::Database::dead_letters).
#[derive(Clone, Debug)]
pub struct DeadLetters {
    records: Arc<dyn Records>,
}

impl DeadLetters {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records }
    }

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

    /// How many dead letters there are of a group, or of all, those that are being replayed included.
    ///
    /// # Errors
    ///
    /// When the database can't be read.
    pub async fn count(&self, group: Option<&str>) -> Result<u64, StoreError> {
        self.records.count_dead_letters(group).await
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
    /// The handler of a letter may be linked into another program only; a program that has others logs that, and the replay waits. If no
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
        let linked = Linked::find(&group, &handler);
        if linked.any && !linked.this {
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

/// Whether this program has handlers.
struct Linked<'a> {
    group: &'a str,
    handler: &'a str,
    /// Any handler at all: an operator's tool has none.
    any: bool,
    /// The one of that group and name.
    this: bool,
}

impl<'a> Linked<'a> {
    fn find(group: &'a str, handler: &'a str) -> Self {
        let mut linked = Self {
            group,
            handler,
            any: false,
            this: false,
        };
        visit(&mut linked);
        linked
    }
}

impl Visitor for Linked<'_> {
    fn registration<S: Store>(&mut self, registration: &'static Registration<S>) {
        self.any = true;
        self.this |= registration.meta.group == self.group && registration.meta.name == self.handler;
    }
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
