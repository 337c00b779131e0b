//! The errors of a store, by what the runtime does about them. Each store says in its own `errors` which of its database's
//! errors is which.

use std::error::Error as StdError;

/// An error of the database that is not the handler's fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A lock that the claim needs was not granted within `lock_wait`.
    #[error("the database is locked by another transaction")]
    Locked(#[source] Box<dyn StdError + Send + Sync>),
    /// The database can't store the message's own values, such as an id with characters that its encoding lacks.
    #[error("the database can't store the message's id")]
    Message(#[source] Box<dyn StdError + Send + Sync>),
    /// A fresh transaction, on another connection, may succeed at once.
    #[error("the database asks for a fresh transaction")]
    Retry(#[source] Box<dyn StdError + Send + Sync>),
    /// A table of the inbox is missing, which is no outage.
    #[error(
        "the inbox's tables are missing: run the program once with INBOX_MIGRATE=auto, or call `inbox_runtime::migrate`"
    )]
    TablesMissing(#[source] Box<dyn StdError + Send + Sync>),
    /// The database can't be used now.
    #[error("the database is not available")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
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

/// Why a message was not written into the outbox, or could not be cancelled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// No broker would take the message; the text says why.
    #[error("{0}")]
    Invalid(String),
    /// The connection has no open transaction, so the message would be published without the effects that it tells of.
    #[error("there is no transaction; begin one, and publish in it")]
    NoTransaction,
    /// The database failed; what is open on the connection must be rolled back.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub enum FinishError {
    /// The handler ended the transaction itself; the text says how. Nothing is committed, the connection is closed.
    Broken(String),
    /// The database refused the commit for good (a deferred constraint): the handler's failure.
    Refused(sqlx::Error),
    /// A fresh transaction may succeed at once.
    Retry(sqlx::Error),
    /// The transaction was not committed because of what the handler did to its session: a statement that it gave up on was
    /// still running, or the server had ended the session. The handler's failure; the connection is closed.
    SessionMisused(String),
    /// The connection is lost and the transaction was not committed, or its outcome is unknown.
    Lost(String),
}

/// Why a rollback isn't one.
#[derive(Debug)]
pub enum AbandonError {
    /// The handler ended the transaction itself; the text says how. The connection is closed.
    Broken(String),
    /// The transaction had been rolled back, by the handler or by the database, which can be used; the text says both.
    /// Where the handler failed with an error of the database that has nothing to do with its statement, it was the database.
    RolledBack(String),
    /// The connection is lost, which rolls back too; whose fault that is, a probe tells.
    Lost(String),
}

/// What a handler's database error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultClass {
    /// The statement was wrong, or a constraint refused it: the handler's own failure.
    Handler,
    /// A fresh transaction may succeed at once (serialization failure, deadlock, lock timeout).
    Retry,
    /// What the handler needs doesn't exist, or may not be used: a table, a column, a right. A fault of the deployment (a
    /// migration that was forgotten) unless other messages of the handler succeed.
    Deployment,
    /// The connection's prepared statements are out of date: a fresh transaction on another connection may succeed, and
    /// if it doesn't, the statement was wrong.
    Stale,
    /// It may be an outage (no connection, a full disk) or what this message alone asks for: a probe tells.
    Suspect,
}
