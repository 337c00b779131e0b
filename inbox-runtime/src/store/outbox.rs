//! What a relay asks of a database's outbox.
//!
//! The outbox is a table of messages that wait to be published, each in the lane of its subject and key, in the order in which they
//! were written. A row is deleted when the broker has confirmed its message: there is no cursor that could skip a row which was
//! committed late, and no column that says how far it is.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::error::StoreError;
use crate::delivery::{Headers, Message};

/// The outbox of a database, as a relay works on it. Every call is a transaction of its own.
pub trait OutboxStore: fmt::Debug + Send + Sync {
    /// The first message of each lane, and whether a delayed message is due.
    fn outbox_heads(&self) -> BoxFuture<'_, Result<OutboxHeads, StoreError>>;

    /// Takes a lane from all other relays and reads its first messages; `None` if another one has it. What is read was
    /// committed, and is seen as it is after the last relay has given the lane back.
    fn take_lane<'a>(
        &'a self,
        request: LaneRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Box<dyn OutboxLane>>, StoreError>>;

    /// Moves delayed messages that are due to the end of their lanes, at most `max` of them. Returns how many.
    fn move_due(&self, max: u32) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// How many messages wait that are not delayed; counted up to `max`.
    fn count_outbox(&self, max: u64) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// How many messages are parked; counted up to `max`.
    fn count_parked(&self, max: u64) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The parked messages with numbers above `after`, at most `limit` of them, in the order of their numbers.
    fn parked(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>>;

    /// Moves a parked message to the end of its lane. Returns whether it was there.
    fn replay_parked(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes a parked message. Returns whether it was there.
    fn discard_parked(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>>;
}

/// A lane that a relay has taken. Dropped, it is given back with all of its messages.
pub trait OutboxLane: Send {
    /// Its first messages, in order. Empty at the second call.
    fn take_rows(&mut self) -> Vec<OutboxRow>;

    /// Deletes the messages that the broker has confirmed, parks those that it refuses for good, each with the reason, and gives the
    /// lane back.
    fn finish(
        self: Box<Self>,
        confirmed: Vec<i64>,
        refused: Vec<(i64, String)>,
    ) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// Which messages of a lane are wanted.
#[derive(Clone, Copy, Debug)]
pub struct LaneRequest<'a> {
    /// The lane, from 0.
    pub lane: u16,
    /// Only messages of that subject.
    pub only: Option<&'a str>,
    /// Subjects that are left out.
    pub skip: &'a [String],
    /// At most so many messages, from 1.
    pub max_messages: u32,
    /// No further message once payloads and headers have so many bytes.
    pub max_bytes: u64,
}

/// What waits in an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxHeads {
    /// The first message of each lane that has one.
    pub lanes: Vec<LaneHead>,
    /// Whether a delayed message is due.
    pub due: bool,
}

/// The first message of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneHead {
    /// The lane, from 0.
    pub lane: u16,
    /// How long ago it was written, by the database's clock.
    pub age: Duration,
}

/// A message that waits in the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its number, in the order of writing.
    pub id: i64,
    /// What is published.
    pub message: Message,
}

/// A message that the broker has refused for good.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedMessage {
    /// Its number among the parked messages.
    pub id: i64,
    /// The id by which its consumers would deduplicate it.
    pub message_id: String,
    /// Where it was to go.
    pub subject: String,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its headers.
    pub headers: Headers,
    /// Its body; `None` is a null payload.
    pub payload: Option<Bytes>,
    /// Why the broker refuses it.
    pub error: String,
    /// When it was parked, by the database's clock.
    pub parked_at: SystemTime,
}
