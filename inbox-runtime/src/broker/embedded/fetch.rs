//! Leasing deliveries: what is ready, and the transaction that takes it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sqlx::{Connection, Row, SqliteConnection, sqlite::SqliteRow};
use tokio::sync::Notify;

use super::{
    Shared, clock,
    clock::until,
    config::{LOOK, POLL, Place, SCAN},
};
use crate::{
    broker::{BrokerError, subject},
    delivery::Delivery,
};

/// The durable consumer of a source.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) id: i64,
    pub(super) group: String,
    pub(super) subject: String,
    /// Whether a message is delivered only when the one before it is settled.
    pub(super) ordered: bool,
    /// Wakes the pull that waits for a delivery of it.
    pub(super) woken: Notify,
}

impl Durable {
    /// It was there and isn't any more. A new one isn't made in its place under a running program, which would repeat or skip
    /// messages unasked.
    fn gone(&self, place: &Place) -> BrokerError {
        let Self { group, subject, .. } = self;
        BrokerError::Unavailable {
            message: format!(
                "the durable consumer of the group `{group}` on `{subject}` was removed from the embedded broker ({place}) \
                 while this program had it open; start the program again to make a new one, which begins as `start` says, or \
                 at the first message that is kept if the inbox knows the group"
            ),
            source: None,
        }
    }
}

/// A delivery that was leased.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) delivery: Delivery,
    pub(super) seq: i64,
    pub(super) count: i64,
    /// When the lease began.
    pub(super) at: i64,
}

/// A durable and what there is for it.
#[derive(Debug)]
struct State {
    ack_wait: i64,
    position: i64,
    /// The first message behind the position.
    next: Option<i64>,
    last: Option<i64>,
    /// When the first pending delivery is due.
    visible_at: Option<i64>,
    /// When the last pending delivery is due.
    last_visible_at: Option<i64>,
    /// When the last pending delivery was taken.
    taken_at: Option<i64>,
}

impl State {
    /// Reads it; by indexes only, whatever the number of messages.
    ///
    /// `None`: the durable is gone.
    async fn read(connection: &mut SqliteConnection, durable: &Durable) -> Result<Option<Self>, sqlx::Error> {
        let row = sqlx::query(
            "SELECT ack_wait, position, \
             (SELECT min(seq) FROM messages WHERE seq > c.position) AS next, \
             (SELECT max(seq) FROM messages) AS last, \
             (SELECT min(visible_at) FROM pending WHERE consumer = c.id) AS visible_at, \
             (SELECT max(visible_at) FROM pending WHERE consumer = c.id) AS last_visible_at, \
             (SELECT max(taken_at) FROM pending WHERE consumer = c.id) AS taken_at \
             FROM consumers c WHERE id = ?",
        )
        .bind(durable.id)
        .fetch_optional(connection)
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Self {
            ack_wait: row.try_get("ack_wait")?,
            position: row.try_get("position")?,
            next: row.try_get("next")?,
            last: row.try_get("last")?,
            visible_at: row.try_get("visible_at")?,
            last_visible_at: row.try_get("last_visible_at")?,
            taken_at: row.try_get("taken_at")?,
        }))
    }

    /// The result of a look that saw this and took `taken`.
    fn found(&self, taken: Vec<Taken>, now: i64) -> Found {
        let pause = match self.visible_at {
            None => LOOK,
            Some(at) if at > now => until(at, now).min(LOOK),
            // What is due and wasn't taken can't be had: its message is gone. Looking again at once would find it so for ever.
            Some(_) => POLL,
        };
        Found {
            taken,
            ack_wait: self.ack_wait,
            pause,
        }
    }

    /// Whether there is something to take, or at least to look at.
    fn is_ready(&self, durable: &Durable, now: i64) -> bool {
        !self.is_blocked(durable, now) && (self.next.is_some() || self.has_due(now))
    }

    /// Whether a delivery that is out keeps all others waiting.
    fn is_blocked(&self, durable: &Durable, now: i64) -> bool {
        let out = self.last_visible_at.is_some_and(|at| at > now) && self.taken_at.is_none_or(|at| at <= now);
        durable.ordered && out
    }

    /// Whether a pending delivery is due. One that was taken in the future is: the clock was put back, and its own time
    /// could be years away.
    fn has_due(&self, now: i64) -> bool {
        self.visible_at.is_some_and(|at| at <= now) || self.taken_at.is_some_and(|at| at > now)
    }
}

/// What came of looking for deliveries.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) taken: Vec<Taken>,
    /// The durable's ack-wait, in milliseconds.
    pub(super) ack_wait: i64,
    /// How long to wait before looking again, if nothing was taken.
    pub(super) pause: Duration,
}

/// Leases at most `max` deliveries, the oldest first and those that come again before new ones. Looks first whether
/// there are any, if they are not `expected`: a look needs no lock, so that those who wait don't hinder those who write.
///
/// Dropped half-way it may leave leases that nobody holds, so callers spawn it.
pub(super) async fn take(
    shared: Arc<Shared>,
    durable: Arc<Durable>,
    max: usize,
    expected: bool,
) -> Result<Found, BrokerError> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    if !expected {
        let state = look(&shared, &durable).await?;
        if !state.is_ready(&durable, shared.clock.now()) {
            return Ok(state.found(Vec::new(), shared.clock.now()));
        }
    }
    loop {
        let (taken, state) = take_once(&shared, &durable, max).await?;
        if !taken.is_empty() || state.next.is_none() || state.is_blocked(&durable, shared.clock.now()) {
            return Ok(state.found(taken, shared.clock.now()));
        }
    }
}

async fn look(shared: &Shared, durable: &Durable) -> Result<State, BrokerError> {
    let mut reading = shared.db().await?.reading().await?;
    let state = State::read(&mut reading, durable).await;
    let state = reading.done("look for messages in", state)?;
    state.ok_or_else(|| durable.gone(&shared.place))
}

/// One transaction: what it leased, and what it found; it looks at a bounded number of messages.
async fn take_once(shared: &Shared, durable: &Durable, max: i64) -> Result<(Vec<Taken>, State), BrokerError> {
    let db = shared.db().await?;
    let mut writing = db.relaxed().await?;
    let transaction = async {
        let mut tx = writing.begin_with("BEGIN IMMEDIATE").await?;
        // Behind the lock: waiting for it may have taken a while.
        let now = shared.clock.now();
        let Some(state) = State::read(&mut tx, durable).await? else {
            return Ok(None);
        };
        if state.is_blocked(durable, now) {
            return Ok(Some((Vec::new(), state)));
        }
        let max = if durable.ordered { 1 } else { max };
        let mut lease = Lease {
            connection: &mut tx,
            durable,
            instance: &db.instance,
            now,
            visible_at: now.saturating_add(state.ack_wait),
        };
        let mut taken = if state.has_due(now) {
            lease.again(max).await?
        } else {
            Vec::new()
        };
        let room = max - i64::try_from(taken.len()).unwrap_or(max);
        if room > 0 {
            lease.fresh(&state, room, &mut taken).await?;
        }
        tx.commit().await?;
        Ok(Some((taken, state)))
    };
    let result = transaction.await;
    let taken = writing.done("take messages from", result)?;
    taken.ok_or_else(|| durable.gone(&shared.place))
}

/// The parts of the transaction.
struct Lease<'a> {
    connection: &'a mut SqliteConnection,
    durable: &'a Durable,
    instance: &'a str,
    now: i64,
    visible_at: i64,
}

impl Lease<'_> {
    /// Leases pending deliveries that are due.
    async fn again(&mut self, max: i64) -> Result<Vec<Taken>, sqlx::Error> {
        let rows = sqlx::query(
            "SELECT m.seq, m.subject, m.published_at, m.headers, m.payload, p.delivery_count + 1 AS delivery_count \
             FROM pending p JOIN messages m ON m.seq = p.seq \
             WHERE p.consumer = ?1 AND (p.visible_at <= ?2 OR p.taken_at > ?2) ORDER BY p.seq LIMIT ?3",
        )
        .bind(self.durable.id)
        .bind(self.now)
        .bind(max)
        .fetch_all(&mut *self.connection)
        .await?;
        let taken = rows.iter().map(|row| self.taken(row)).collect::<Result<Vec<_>, _>>()?;
        // The first `max` that are due are all that are due up to the last of them.
        if let Some(last) = taken.last() {
            sqlx::query(
                "UPDATE pending SET delivery_count = delivery_count + 1, taken_at = ?2, visible_at = ?3 \
                 WHERE consumer = ?1 AND seq <= ?4 AND (visible_at <= ?2 OR taken_at > ?2)",
            )
            .bind(self.durable.id)
            .bind(self.now)
            .bind(self.visible_at)
            .bind(last.seq)
            .execute(&mut *self.connection)
            .await?;
        }
        Ok(taken)
    }

    /// Leases at most `max` messages behind the position and adds them to `taken`.
    async fn fresh(&mut self, state: &State, max: i64, taken: &mut Vec<Taken>) -> Result<(), sqlx::Error> {
        let (Some(next), Some(last)) = (state.next, state.last) else {
            return Ok(());
        };
        let end = last.min(next.saturating_add(SCAN - 1));
        let rows = sqlx::query(
            "SELECT seq, subject, published_at, headers, payload, 1 AS delivery_count \
             FROM messages WHERE seq > ? AND seq <= ? AND subject GLOB ? ORDER BY seq LIMIT ?",
        )
        .bind(state.position)
        .bind(end)
        .bind(glob(&self.durable.subject))
        .bind(max)
        .fetch_all(&mut *self.connection)
        .await?;
        let position = match rows.last() {
            Some(row) if i64::try_from(rows.len()).is_ok_and(|found| found >= max) => row.try_get("seq")?,
            _ => end,
        };
        let before = taken.len();
        for row in &rows {
            if subject::matches(&self.durable.subject, row.try_get("subject")?) {
                taken.push(self.taken(row)?);
            }
        }
        self.insert(&taken[before..]).await?;
        sqlx::query("UPDATE consumers SET position = ? WHERE id = ?")
            .bind(position)
            .bind(self.durable.id)
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }

    /// Adds the pending rows of new deliveries.
    async fn insert(&mut self, taken: &[Taken]) -> Result<(), sqlx::Error> {
        if taken.is_empty() {
            return Ok(());
        }
        // A list in JSON keeps the text of the statement the same for every number of rows.
        let seqs = format!("{:?}", taken.iter().map(|taken| taken.seq).collect::<Vec<_>>());
        sqlx::query(
            "INSERT INTO pending (consumer, seq, delivery_count, taken_at, visible_at) \
             SELECT ?, value, 1, ?, ? FROM json_each(?)",
        )
        .bind(self.durable.id)
        .bind(self.now)
        .bind(self.visible_at)
        .bind(seqs)
        .execute(&mut *self.connection)
        .await?;
        Ok(())
    }

    fn taken(&self, row: &SqliteRow) -> Result<Taken, sqlx::Error> {
        Ok(Taken {
            delivery: delivery(self.instance, row)?,
            seq: row.try_get("seq")?,
            count: row.try_get("delivery_count")?,
            at: self.now,
        })
    }
}

/// The delivery in a row with the columns of a message and `delivery_count`.
pub(super) fn delivery(instance: &str, row: &SqliteRow) -> Result<Delivery, sqlx::Error> {
    let count: i64 = row.try_get("delivery_count")?;
    let headers: &[u8] = row.try_get("headers")?;
    let payload: Option<Vec<u8>> = row.try_get("payload")?;
    let subject: String = row.try_get("subject")?;
    let mut delivery = Delivery::new(subject, position(instance, row.try_get("seq")?));
    delivery.headers = serde_json::from_slice(headers).map_err(|error| sqlx::Error::ColumnDecode {
        index: "headers".to_owned(),
        source: Box::new(error),
    })?;
    delivery.payload = payload.map(Bytes::from);
    delivery.delivery_count = u64::try_from(count).ok();
    delivery.redelivered = count > 1;
    delivery.published_at = clock::time(row.try_get("published_at")?);
    Ok(delivery)
}

/// The name of a stored message.
pub(super) fn position(instance: &str, seq: i64) -> String {
    format!("embedded:{instance}:{seq}")
}

/// A GLOB pattern that finds every subject that `pattern` takes, and possibly more: its `*` goes over dots. What means
/// something else to GLOB can't stand in a subject.
pub(super) fn glob(pattern: &str) -> String {
    pattern.replace('>', "*")
}
