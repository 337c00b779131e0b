//! Reads the rows of the tables for attempts, dead letters and the outbox, whose columns have the same names on every database.

use std::time::Duration;

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{
    begin_attempt::KnownMessage,
    claim::Fingerprint,
    encoding::{StoredKey, attempts, from_millis, read_headers, reason},
    outbox::{LaneHead, OutboxHeads, OutboxRow, ParkedMessage},
    rows::{DeadLetter, DeadLetterStatus, ReplayToken, Stranded},
};
use crate::delivery::Message;

/// A row that is being read.
pub(super) struct RowReader<'a, R>(pub(super) &'a R);

impl<R> RowReader<'_, R>
where
    R: Row,
    for<'n> &'n str: ColumnIndex<R>,
    for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    pub(super) fn key(self) -> sqlx::Result<StoredKey> {
        let Self(row) = self;
        Ok(StoredKey {
            group: row.try_get("consumer_group")?,
            handler: row.try_get("handler")?,
            position: row.try_get("position")?,
            message_id: row.try_get("message_id")?,
            fingerprint: row.try_get("fingerprint")?,
        })
    }

    pub(super) fn known(self) -> sqlx::Result<KnownMessage> {
        let Self(row) = self;
        Ok(KnownMessage {
            handled: row.try_get("handled")?,
            dead_lettered: row.try_get("dead_lettered")?,
            attempts: row.try_get("attempts")?,
            unfinished: row.try_get("unfinished")?,
            last_error: row.try_get("last_error")?,
        })
    }

    pub(super) fn letter(self) -> sqlx::Result<DeadLetter> {
        let Self(row) = self;
        let replay_requested_at = row.try_get::<Option<i64>, _>("replay_requested_at")?.map(from_millis);
        Ok(DeadLetter {
            id: row.try_get("id")?,
            group: row.try_get("consumer_group")?,
            handler: row.try_get("handler")?,
            subject: row.try_get("subject")?,
            message_id: row.try_get("message_id")?,
            position: row.try_get("position")?,
            fingerprint: Fingerprint::from_i64(row.try_get("fingerprint")?),
            headers: read_headers(&row.try_get::<Vec<u8>, _>("headers")?)?,
            payload: row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Into::into),
            message_key: row.try_get::<Option<Vec<u8>>, _>("message_key")?.map(Into::into),
            published_at: row.try_get::<Option<i64>, _>("published_at")?.map(from_millis),
            reason: reason(&row.try_get::<String, _>("reason")?)?,
            error: row.try_get("error")?,
            attempts: attempts(row.try_get("attempts")?),
            first_failed_at: from_millis(row.try_get("first_failed_at")?),
            dead_at: from_millis(row.try_get("dead_at")?),
            status: match replay_requested_at {
                Some(_) => DeadLetterStatus::Replaying,
                None => DeadLetterStatus::Dead,
            },
            replay_requested_at,
        })
    }

    /// A letter, with the lease under which it is replayed.
    pub(super) fn leased(self) -> sqlx::Result<(DeadLetter, ReplayToken)> {
        let Self(row) = self;
        let letter = self.letter()?;
        let token = ReplayToken {
            id: letter.id,
            lease: row.try_get("replay_lease")?,
        };
        Ok((letter, token))
    }

    /// A message of the outbox.
    pub(super) fn outgoing(self) -> sqlx::Result<OutboxRow> {
        let Self(row) = self;
        let mut message = Message::tombstone(row.try_get::<String, _>("subject")?);
        message.headers = read_headers(&row.try_get::<Vec<u8>, _>("headers")?)?;
        message.key = row.try_get::<Option<Vec<u8>>, _>("message_key")?.map(Into::into);
        message.payload = row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Into::into);
        let id = row.try_get("id")?;
        Ok(OutboxRow { id, message })
    }

    pub(super) fn parked(self) -> sqlx::Result<ParkedMessage> {
        let Self(row) = self;
        Ok(ParkedMessage {
            id: row.try_get("id")?,
            message_id: row.try_get("message_id")?,
            subject: row.try_get("subject")?,
            key: row.try_get::<Option<Vec<u8>>, _>("message_key")?.map(Into::into),
            headers: read_headers(&row.try_get::<Vec<u8>, _>("headers")?)?,
            payload: row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Into::into),
            error: row.try_get("error")?,
            parked_at: from_millis(row.try_get("parked_at")?),
        })
    }

    pub(super) fn stranded(self) -> sqlx::Result<Stranded> {
        let Self(row) = self;
        Ok(Stranded {
            group: row.try_get("consumer_group")?,
            handler: row.try_get("handler")?,
            letters: row.try_get("letters")?,
        })
    }
}

/// Reads the first messages of lanes, with the lane -1 for a delayed message that is due.
pub(super) fn read_heads<R>(rows: &[R]) -> sqlx::Result<OutboxHeads>
where
    R: Row,
    for<'n> &'n str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let mut heads = OutboxHeads::default();
    for row in rows {
        let (lane, age): (i64, i64) = (row.try_get("lane")?, row.try_get("age")?);
        match u16::try_from(lane) {
            Ok(lane) => heads.lanes.push(LaneHead {
                lane,
                // The clock may have been set back since.
                age: Duration::from_millis(u64::try_from(age).unwrap_or_default()),
            }),
            Err(_) => heads.due = true,
        }
    }
    Ok(heads)
}

/// Reads every row.
pub(super) fn read_all<'r, R, T>(
    rows: &'r [R],
    read: impl Fn(RowReader<'r, R>) -> sqlx::Result<T>,
) -> sqlx::Result<Vec<T>> {
    rows.iter().map(|row| read(RowReader(row))).collect()
}
