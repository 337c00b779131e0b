//! The database side: the trait of a store, its sessions, and the tables beside the inbox.

use std::{error::Error as StdError, fmt, future::Future, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use crate::outcome::DatabaseFault;

pub(crate) mod detached;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod migrate;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod records;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod shape;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod tables;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod texts;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transaction;

pub use records::{
    AttemptKey, AttemptLimit, BeginAttempt, DeadLetter, DeadLetterStatus, NewDeadLetter, Reason, ReplayToken, Stranded,
};

/// A connection that a handler can take as `&mut C`: it tells which store the handler belongs to.
#[diagnostic::on_unimplemented(
    message = "`&mut {Self}` is not a transaction that an inbox handler can take",
    label = "not a connection of an enabled database",
    note = "take `&mut SqliteConnection` (feature `sqlite`) or `&mut PgConnection` (feature `postgres`), from `inbox_runtime::sqlx`",
    note = "a connection type of another version of sqlx is another type: use the sqlx that `inbox_runtime` re-exports"
)]
pub trait InboxConnection: Sized + Send + 'static {
    /// The store of this connection's database.
    type Store: Store<Conn = Self>;
}

/// The store of a connection.
pub type StoreOf<C> = <C as InboxConnection>::Store;

/// A database that keeps the inbox.
pub trait Store: Clone + Send + Sync + Sized + 'static {
    /// The connection that handlers take.
    type Conn: Send + 'static;
    /// What a worker holds while it has messages.
    type Session: Session<Conn = Self::Conn>;

    /// The database's name in texts, as in `SQLite`.
    const NAME: &'static str;
    /// The environment variable that names its database when `DATABASE_URL` names another one.
    const VARIABLE: &'static str;
    /// The schemes of its URLs.
    const SCHEMES: &'static [&'static str];
    /// A URL, for texts that ask for one.
    const EXAMPLE_URL: &'static str;
    /// Whether its handlers have a transaction that carries their effects.
    const TRANSACTIONAL: bool;

    /// The store of the database of that URL. Connects when it is first used, and so must be called on a runtime of tokio.
    fn at(url: &str, settings: StoreSettings) -> Result<Self, ConnectError>;

    /// Shows that the database can be used now: takes a fresh connection of the pool and writes an inbox row in a transaction
    /// that is rolled back. Asked before a handler is declared blocked, since an error of one message may look like an
    /// outage. The error is the cause in words for health.
    fn probe(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// A session, proved to be alive.
    fn session(&self) -> impl Future<Output = Result<Self::Session, StoreError>> + Send;

    /// How many connections its pool may have, where each worker that has messages holds one.
    fn max_connections(&self) -> Option<u32> {
        None
    }

    /// The tables for attempts and dead letters.
    fn records(&self) -> Arc<dyn Records>;

    /// Inserts the inbox row on a connection with an open transaction that is not a session's.
    fn claim_on(conn: &mut Self::Conn, claim: &Claim<'_>) -> impl Future<Output = Result<Claimed, ClaimError>> + Send;

    /// What a database error means that a handler failed with, whose transaction was alive after it and has been rolled
    /// back: the database works, so that no code is an outage.
    fn classify(&self, fault: &DatabaseFault) -> FaultClass;
}

/// What a store must know besides its database.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreSettings {
    /// How long a claim waits for another transaction's lock (default 1 s).
    pub lock_wait: Duration,
    /// How long the end of a transaction may take, a commit as well as a rollback (default 15 s). Past it the connection is
    /// closed, and what became of the transaction is asked on another one.
    pub commit_timeout: Duration,
    /// How many connections a pool that the runtime makes may have (default 10).
    pub pool_size: u32,
    /// Whether a transaction-pooling proxy stands before the database, which shares its connections among programs.
    pub transaction_pooler: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            lock_wait: Duration::from_secs(1),
            commit_timeout: Duration::from_secs(15),
            pool_size: 10,
            transaction_pooler: false,
        }
    }
}

/// A pool that a program hands to the runtime.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pool of an enabled database",
    note = "give a `SqlitePool` (feature `sqlite`) or a `PgPool` (feature `postgres`), from `inbox_runtime::sqlx`"
)]
pub trait IntoStore {
    /// The store of this pool's database.
    type Store: Store;

    /// Makes the store.
    fn into_store(self, settings: StoreSettings) -> Self::Store;
}

/// Why there is no connection to a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL can't be read.
    #[error("the URL can't be read")]
    Url(#[source] Box<dyn StdError + Send + Sync>),
    /// It answered what waiting doesn't mend: a wrong password, an unknown role or database, a file that isn't there. The
    /// text names the server or the file, and has its own words.
    #[error("{message}")]
    Refused {
        /// What was refused, why, and what to do.
        message: String,
        /// The answer.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// It can't be reached now: it doesn't run, starts up, doesn't answer. A start waits for it.
    #[error("{message}")]
    Unavailable {
        /// What can't be reached, and why.
        message: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// What a handler's database error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultClass {
    /// The statement was wrong, or a constraint refused it: the handler's own failure.
    Handler,
    /// A fresh transaction may succeed at once (serialization failure, deadlock, lock timeout).
    Again,
    /// What the handler needs isn't there, or may not be used: a table, a column, a right. A fault of the deployment (a
    /// migration that was forgotten) unless other messages of the handler succeed.
    Deployment,
    /// The connection's prepared statements are out of date: a fresh transaction on another connection may succeed, and
    /// if it doesn't, the statement was wrong.
    Stale,
    /// It may be an outage (no connection, a full disk) or what this message alone asks for: a probe tells.
    Suspect,
}

/// A worker's hold on the database: one transaction after another.
///
/// Dropped in the middle of a transaction it rolls back, and the connection is not used again.
pub trait Session: Send + Sized {
    /// The connection that the handler borrows.
    type Conn: Send + 'static;

    /// Shows that a transaction could be opened and written to now. Only `at_most_once` asks, before it acknowledges what
    /// would be lost otherwise.
    fn probe(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Opens a transaction and, given a claim, inserts the inbox row as its first statement.
    fn begin(&mut self, claim: Option<&Claim<'_>>) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// The connection with the open transaction. Until [`finish`](Self::finish) or [`abandon`](Self::abandon) nobody but
    /// the runtime can end that transaction unnoticed.
    fn conn(&mut self) -> &mut Self::Conn;

    /// Proves that the transaction is alive and ours, and commits it. The next transaction may be begun on the way; whether it
    /// was doesn't show in the result, and the next [`begin`](Self::begin) returns what became of it.
    fn finish(&mut self, next: NextTx<'_>) -> impl Future<Output = Result<(), FinishError>> + Send;

    /// Proves that the transaction is ours, and rolls it back.
    fn abandon(&mut self) -> impl Future<Output = Result<(), AbandonError>> + Send;

    /// Ends a transaction in which nothing was written, because the claim found a row. The error tells that the session
    /// can't be used again.
    fn discard(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives back what the session holds: there is no next message.
    fn release(self) -> impl Future<Output = ()> + Send;
}

/// The inbox row of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The consumer group.
    pub group: &'a str,
    /// The message's id.
    pub message_id: &'a str,
    /// 32 bits of the subject's hash and 32 of the payload's.
    pub fingerprint: Fingerprint,
}

/// How a worker's next transaction begins. A store may begin it in the commit of the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTx<'a> {
    /// No next message is prefetched.
    None,
    /// It begins without a claim, or not at all.
    Begin,
    /// It begins with this claim.
    Claim(Claim<'a>),
}

/// What tells a message from another one that was given the same id: a hash of its subject and one of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(i64);

impl Fingerprint {
    /// Of a message that was claimed by hand, of which only the id is known. It agrees with every other.
    pub const UNKNOWN: Self = Self(0);

    /// The fingerprint of a message.
    #[must_use]
    pub fn of(subject: &str, payload: Option<&[u8]>) -> Self {
        let payload = payload.map_or(0, crc32fast::hash);
        let bits = u64::from(crc32fast::hash(subject.as_bytes())) << 32 | u64::from(payload);
        // 0 is taken.
        Self(bits.max(1).cast_signed())
    }

    /// The fingerprint as the database keeps it.
    #[must_use]
    pub const fn to_i64(self) -> i64 {
        self.0
    }

    /// A fingerprint that the database kept.
    #[must_use]
    pub const fn from_i64(bits: i64) -> Self {
        Self(bits)
    }

    /// Whether both can be of messages of one subject.
    #[must_use]
    pub const fn same_subject(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32 || self.0 == 0 || other.0 == 0
    }

    /// Whether both can be of one message.
    #[must_use]
    pub const fn same(self, other: Self) -> bool {
        self.0 == other.0 || self.0 == 0 || other.0 == 0
    }
}

/// The answer to a claim.
#[must_use = "a duplicate must not be handled again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The row is ours; it is there if and only if the transaction commits.
    Fresh,
    /// The group has handled a message of this id, and this was its fingerprint.
    Duplicate(Fingerprint),
}

impl Claimed {
    /// Whether the group has handled the message before.
    #[must_use]
    pub const fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

/// Why a message could not be claimed by hand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The group or the id can't be used; the text says why.
    #[error("{0}")]
    Invalid(String),
    /// The connection has no open transaction, so the claim would be committed without the effects that it stands for.
    #[error("there is no transaction; begin one, and claim in it")]
    NoTransaction,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Trouble with the database that is no fault of a message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A lock that the claim needs was not given within `lock_wait`.
    #[error("the database is locked by another transaction")]
    Locked(#[source] Box<dyn StdError + Send + Sync>),
    /// The database can't store the message's own values, such as an id with characters that its encoding lacks.
    #[error("the database can't store the message's id")]
    Message(#[source] Box<dyn StdError + Send + Sync>),
    /// A fresh transaction, on another connection, may succeed at once.
    #[error("the database asks for a fresh transaction")]
    Again(#[source] Box<dyn StdError + Send + Sync>),
    /// The database can't be used now.
    #[error("{}", headline(&**.0))]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
}

/// What a fault of the database is called: that the inbox's own tables are missing is no outage.
fn headline(error: &(dyn StdError + Send + Sync + 'static)) -> &'static str {
    let answer = error
        .downcast_ref::<sqlx::Error>()
        .and_then(sqlx::Error::as_database_error);
    let is_missing = answer.is_some_and(|answer| {
        let undefined = answer.code().is_some_and(|code| code == "42P01") || answer.message().contains("no such table");
        undefined && answer.message().contains("inbox_")
    });
    if is_missing {
        TABLES_MISSING
    } else {
        "the database is not available"
    }
}

/// What to do where the inbox has no tables.
pub(crate) const TABLES_MISSING: &str = "the inbox's tables are missing: run the program once with INBOX_MIGRATE=auto, or \
                                         call `inbox_runtime::migrate`";

/// Why a transaction was not committed.
#[derive(Debug)]
pub enum FinishError {
    /// The handler ended the transaction itself; the text says how. Nothing is committed, the connection is closed.
    Broken(String),
    /// The database refused the commit for good (a deferred constraint): the handler's failure.
    Refused(sqlx::Error),
    /// A fresh transaction may succeed at once.
    Again(sqlx::Error),
    /// The transaction was not committed because of what the handler did with its session: a statement that it gave up on was
    /// still running, or the server had ended the session. The handler's failure; the connection is closed.
    Ruined(String),
    /// The connection is lost and the transaction was not committed, or nobody can say whether it was.
    Lost(String),
}

/// Why a rollback isn't one.
#[derive(Debug)]
pub enum AbandonError {
    /// The handler ended the transaction itself; the text says how. The connection is closed.
    Broken(String),
    /// The transaction was rolled back before, by the handler or by the database, which can be used; the text says both.
    /// Where the handler failed with an error of the database that has nothing to do with its statement, it was that.
    RolledBack(String),
    /// The connection is lost, which rolls back too; whose fault that is a probe tells.
    Lost(String),
}

/// The tables beside the inbox. Every method is a transaction of its own, never one that holds a handler's effects.
pub trait Records: fmt::Debug + Send + Sync {
    /// Makes the tables, or checks them.
    fn migrate(&self, mode: Migrate) -> BoxFuture<'_, Result<(), MigrateError>>;

    /// Makes a first connection, within a few seconds, and looks at what kind of server answers. The error tells whether
    /// waiting helps.
    fn reach(&self) -> BoxFuture<'_, Result<(), ConnectError>>;

    /// Shows that the tables are there and can be written to: a row goes into `inbox_events` and is rolled back.
    fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Shows that the database can be used now, as [`Store::probe`] does.
    fn probe(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The database's version and the settings that matter, for the start report.
    fn describe(&self) -> BoxFuture<'_, Result<String, StoreError>>;

    /// Whether there is a record of the group: a message that it has handled, an attempt or a dead letter.
    fn knows<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Whether the group has handled that message, and its fingerprint then. An id that the database can't store is none that
    /// was handled.
    fn handled<'a>(
        &'a self,
        group: &'a str,
        message_id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Fingerprint>, StoreError>>;

    /// Asks what is known of a message that was delivered before, and where that is an attempt that came to an end, notes
    /// that the next one begins.
    fn begin_attempt<'a>(
        &'a self,
        key: &'a AttemptKey,
        limit: AttemptLimit,
    ) -> BoxFuture<'a, Result<BeginAttempt, StoreError>>;

    /// Counts the attempt of a [suspect](BeginAttempt::Suspect) before it is made. Returns how many are counted.
    fn count_attempt<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Takes back what [`begin_attempt`](Self::begin_attempt) noted or, if it was `counted`, what
    /// [`count_attempt`](Self::count_attempt) did.
    fn take_back_attempt<'a>(&'a self, key: &'a AttemptKey, counted: bool) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Notes the error of an attempt, which so has come to an end; counts it too unless it was counted before it was made.
    /// Returns the attempts so far.
    fn record_failure<'a>(
        &'a self,
        key: &'a AttemptKey,
        counted: bool,
        error: &'a str,
    ) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Forgets the attempts.
    fn clear_attempts<'a>(&'a self, key: &'a AttemptKey) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Writes a dead letter, or everything of it anew where there is one of that message. Returns false, and writes nothing,
    /// if it is the letter of a replay whose lease has passed on.
    fn bury<'a>(&'a self, letter: &'a NewDeadLetter) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Takes up to `max` dead letters of that handler that are to be replayed, and leases them.
    fn take_replays<'a>(
        &'a self,
        group: &'a str,
        handler: &'a str,
        max: usize,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Vec<(DeadLetter, ReplayToken)>, StoreError>>;

    /// Leaves a dead letter that was taken to the next who looks, after `delay`; or prolongs its lease, if it stays `taken`.
    /// Returns whether the lease was still that one.
    fn postpone_replay(
        &self,
        token: ReplayToken,
        taken: bool,
        delay: Duration,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes a dead letter and its attempts. Returns whether it was there.
    fn remove(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Removes a dead letter that was replayed, unless it has been buried anew. Returns whether it was there under that
    /// lease.
    fn replayed(&self, token: ReplayToken) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// One dead letter.
    fn dead_letter(&self, id: i64) -> BoxFuture<'_, Result<Option<DeadLetter>, StoreError>>;

    /// Dead letters of a group, or of all, oldest first, whose number is above `after`.
    fn dead_letters<'a>(
        &'a self,
        group: Option<&'a str>,
        after: i64,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<DeadLetter>, StoreError>>;

    /// Marks a dead letter to be replayed and clears its attempts, unless somebody is replaying it now. Returns its group and
    /// its handler, if it is there.
    fn replay(&self, id: i64) -> BoxFuture<'_, Result<Option<(String, String)>, StoreError>>;

    /// The handlers whose dead letters could have been replayed for that time, and nobody took one.
    fn stranded(&self, wait: Duration) -> BoxFuture<'_, Result<Vec<Stranded>, StoreError>>;

    /// The file that the database occupies, if it is one.
    fn file(&self) -> Option<PathBuf>;
}

/// What is done about missing tables at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Migrate {
    /// They are made, and then checked as by [`Check`](Self::Check). The default.
    #[default]
    Auto,
    /// They are looked for: one that is missing, or has other columns, types, collations, keys or rights than it must have,
    /// is a start error that lists every difference.
    Check,
    /// Nothing. The inbox is ready only when they can be written to, and waits until they can.
    Off,
}

/// Why the tables could not be made, or are not as they must be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database can't be used now.
    #[error("{}", headline(&**.0))]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// A migration failed.
    #[error(
        "the inbox's tables can't be made or looked at (where this role may not make them, let another one call \
         `inbox_runtime::migrate`, and set INBOX_MIGRATE=check)"
    )]
    Failed(#[source] Box<dyn StdError + Send + Sync>),
    /// The tables are missing or of another shape; the text says what and what to do.
    #[error("{0}")]
    Shape(String),
}
