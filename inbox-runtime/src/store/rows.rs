//! The rows of the tables for attempts and dead letters, as the runtime sees them.

use std::{fmt, time::SystemTime};

use bytes::Bytes;

use super::claim::Fingerprint;
use crate::delivery::Headers;

/// What attempts are counted by: one handler and one message. The position alone doesn't identify a message: a broker may
/// reuse it, as after a topic was deleted and created again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    /// The consumer group.
    pub group: String,
    /// The handler's name.
    pub handler: String,
    /// The message's position in the broker.
    pub position: String,
    /// The message's id, if it has a usable one.
    pub message_id: Option<String>,
    /// Of its subject and its payload.
    pub fingerprint: Fingerprint,
}

/// What decides whether a message that was delivered before gets another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptLimit {
    /// How many attempts it may have; `None` for unlimited.
    pub max: Option<u32>,
    /// Whether the inbox row of its id tells that it was handled.
    pub claims: bool,
    /// Whether it is the replay of a dead letter: then no row in `inbox_attempts` means that no attempt has begun.
    pub replay: bool,
}

/// What is known of a message that was delivered before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginAttempt {
    /// Its last attempt came to an end, and so many are counted. That another one begins is noted; it is counted when it
    /// has failed.
    Begun(u32),
    /// An attempt may have begun and not come to an end, because the process died: by its fault or by another message's.
    Suspect,
    /// Its attempts are used up.
    Exhausted {
        /// How many there were.
        attempts: u32,
        /// The process died in the last one.
        unfinished: bool,
        /// The last error that is stored.
        error: Option<String>,
    },
    /// It is dead-lettered, and only its acknowledgement was lost.
    DeadLettered,
    /// Its group has handled a message of its id, with that fingerprint.
    Handled(Fingerprint),
}

/// The lease of a dead letter that is being replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayToken {
    /// The dead letter's number in the table.
    pub id: i64,
    /// The number of the lease, counted up for each dead letter. Calls with an earlier one than the row has do nothing.
    pub lease: i64,
}

/// Dead letters that are due for a replay by a handler that no running program has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranded {
    /// Their group.
    pub group: String,
    /// Their handler.
    pub handler: String,
    /// How many there are.
    pub letters: i64,
}

/// Why a message was dead-lettered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadLetterReason {
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

impl DeadLetterReason {
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

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A dead letter to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The handler and the message.
    pub key: AttemptKey,
    /// The lease under which it was replayed, if it was.
    pub replay: Option<ReplayToken>,
    /// The subject that the message was published to.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Option<Bytes>,
    /// Its key, if the broker has keys.
    pub message_key: Option<Bytes>,
    /// When it was published, by the broker's clock.
    pub published_at: Option<SystemTime>,
    /// Why it was dead-lettered.
    pub reason: DeadLetterReason,
    /// The whole chain of the error.
    pub error: String,
    /// How many attempts were made.
    pub attempts: u32,
}

/// Whether a dead letter waits for an operator or is being replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeadLetterStatus {
    /// It waits for an operator.
    Dead,
    /// A replay is requested or under way.
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
    /// The message's id, if it has a usable one. Characters that the database can't store are escaped, as in `\u{20ac}`.
    pub message_id: Option<String>,
    /// Its position in the broker.
    pub position: String,
    /// What tells it from another message with the same position and id.
    pub fingerprint: Fingerprint,
    /// Its headers.
    pub headers: Headers,
    /// Its payload; `None` is a null payload.
    pub payload: Option<Bytes>,
    /// Its key, if the broker has keys.
    pub message_key: Option<Bytes>,
    /// When it was published, by the broker's clock.
    pub published_at: Option<SystemTime>,
    /// Why it was dead-lettered.
    pub reason: DeadLetterReason,
    /// The whole chain of the error, of which at most 8 KiB are kept.
    pub error: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// When its first attempt failed, by the database's clock.
    pub first_failed_at: SystemTime,
    /// When it was written, by the database's clock.
    pub dead_at: SystemTime,
    /// Whether it waits for an operator or is being replayed.
    pub status: DeadLetterStatus,
    /// When its replay was requested, by the database's clock. Long ago: no running program has its handler.
    pub replay_requested_at: Option<SystemTime>,
}

impl DeadLetter {
    /// A dead letter of which no replay is requested.
    #[must_use]
    pub fn new(id: i64, letter: NewDeadLetter, first_failed_at: SystemTime, dead_at: SystemTime) -> Self {
        let AttemptKey {
            group,
            handler,
            position,
            message_id,
            fingerprint,
        } = letter.key;
        Self {
            id,
            group,
            handler,
            subject: letter.subject,
            message_id,
            position,
            fingerprint,
            headers: letter.headers,
            payload: letter.payload,
            message_key: letter.message_key,
            published_at: letter.published_at,
            reason: letter.reason,
            error: letter.error,
            attempts: letter.attempts,
            first_failed_at,
            dead_at,
            status: DeadLetterStatus::Dead,
            replay_requested_at: None,
        }
    }
}
