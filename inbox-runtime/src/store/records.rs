//! The rows of the tables beside the inbox: attempts and dead letters.

use std::{fmt, time::SystemTime};

use bytes::Bytes;

use crate::delivery::Headers;

/// Whose attempts are counted: one handler's on one stored message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    /// The consumer group.
    pub group: String,
    /// The handler's name.
    pub handler: String,
    /// The message's position in the broker.
    pub position: String,
}

/// The answer to the wish to make another attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempts {
    /// It is counted; this many are, with it.
    Begun(u32),
    /// There were this many already; the last one's error, if it left one.
    Exhausted(u32, Option<String>),
    /// The message is a dead letter already, and only its acknowledgement was lost.
    Buried,
}

/// Why a message is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It has no usable id, or an extractor rejected it.
    Rejected,
    /// The handler refused it for good.
    Permanent,
    /// Its attempts were used up.
    Exhausted,
    /// The handler ended the transaction itself.
    BrokenTransaction,
    /// Its id belongs to another message, of another subject.
    IdReused,
    /// The handler failed under `commit = "on_persist"`.
    Persisted,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::Rejected,
        Self::Permanent,
        Self::Exhausted,
        Self::BrokenTransaction,
        Self::IdReused,
        Self::Persisted,
    ];

    /// The reason as it stands in the table, in snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Permanent => "permanent",
            Self::Exhausted => "exhausted",
            Self::BrokenTransaction => "broken_transaction",
            Self::IdReused => "id_reused",
            Self::Persisted => "persisted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A dead letter to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// Whose it is.
    pub key: AttemptKey,
    /// The subject that the message was published to.
    pub subject: String,
    /// The message's id, if it has one that can be stored.
    pub message_id: Option<String>,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Option<Bytes>,
    /// Its key, if the broker has keys.
    pub message_key: Option<Bytes>,
    /// When it was published, by the broker's clock.
    pub published_at: Option<SystemTime>,
    /// Why it is here.
    pub reason: Reason,
    /// The whole chain of the error.
    pub error: String,
    /// How many attempts were made.
    pub attempts: u32,
}

/// Whether a dead letter waits for somebody or is on its way through the pipeline again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeadLetterStatus {
    /// It waits.
    Dead,
    /// It is to be replayed, or is being replayed.
    Replaying,
}

/// A message that its handler could not handle, with everything that is needed to find out why and to replay it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number in the table.
    pub id: i64,
    /// The consumer group.
    pub group: String,
    /// The handler's name.
    pub handler: String,
    /// The subject that the message was published to.
    pub subject: String,
    /// The message's id, unless it had none that can be stored.
    pub message_id: Option<String>,
    /// Where the broker kept it.
    pub position: String,
    /// Its headers.
    pub headers: Headers,
    /// Its payload; `None` is a null payload.
    pub payload: Option<Bytes>,
    /// Its key, if the broker has keys.
    pub message_key: Option<Bytes>,
    /// When it was published, by the broker's clock.
    pub published_at: Option<SystemTime>,
    /// Why it is here.
    pub reason: Reason,
    /// The whole chain of the error.
    pub error: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// When its first attempt failed, by the database's clock.
    pub first_failed_at: SystemTime,
    /// When it was written, by the database's clock.
    pub dead_at: SystemTime,
    /// Whether it waits or is being replayed.
    pub status: DeadLetterStatus,
}
