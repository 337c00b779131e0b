//! Leases deliveries: those that are due again, then new ones.

use std::{sync::Arc, time::Duration};

use sqlx::{Connection, Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    consumer::{Consumer, ConsumerState},
    limits::SCAN_MESSAGES,
    message::delivery,
    shared::EmbeddedShared,
};
use crate::{
    broker::{BrokerError, subject},
    delivery::Delivery,
};

/// A delivery with its lease.
#[derive(Debug)]
pub(super) struct LeasedDelivery {
    pub(super) delivery: Delivery,
    pub(super) seq: i64,
    pub(super) delivery_count: i64,
    /// When the lease began, in milliseconds since 1970.
    pub(super) leased_at: i64,
}

/// The result of a fetch.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) leased: Vec<LeasedDelivery>,
    /// The consumer's ack-wait, in milliseconds.
    pub(super) ack_wait: i64,
    /// How long to wait before the next fetch, if nothing was leased.
    pub(super) pause: Duration,
}

impl Fetched {
    fn new(leased: Vec<LeasedDelivery>, state: &ConsumerState, now: i64) -> Self {
        Self {
            leased,
            ack_wait: state.ack_wait,
            pause: state.pause(now),
        }
    }
}

/// Leases at most `max` deliveries, in the order of their messages; redeliveries come before new ones. Unless some are
/// `expected`, first checks whether there are any, without a lock, so that waiting pulls don't hinder writers.
///
/// Not cancel safe: dropped, it may leave leases without an owner. Callers spawn it.
pub(super) async fn fetch(
    shared: Arc<EmbeddedShared>,
    consumer: Arc<Consumer>,
    max: usize,
    expected: bool,
) -> Result<Fetched, BrokerError> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    if !expected {
        let state = read_state(&shared, &consumer).await?;
        if !state.is_ready(&consumer, shared.clock.now()) {
            return Ok(Fetched::new(Vec::new(), &state, shared.clock.now()));
        }
    }
    loop {
        let (leased, state) = fetch_once(&shared, &consumer, max).await?;
        if !leased.is_empty() || state.next.is_none() || state.is_blocked(&consumer, shared.clock.now()) {
            return Ok(Fetched::new(leased, &state, shared.clock.now()));
        }
    }
}

async fn read_state(shared: &EmbeddedShared, consumer: &Consumer) -> Result<ConsumerState, BrokerError> {
    let mut connection = shared.db().await?.reader().await?;
    let state = ConsumerState::read(&mut connection, consumer).await;
    let state = connection.finish("look for messages in", state)?;
    state.ok_or_else(|| consumer.removed(&shared.storage))
}

/// One transaction, which scans a bounded number of messages. Returns what it leased and the state before.
async fn fetch_once(
    shared: &EmbeddedShared,
    consumer: &Consumer,
    max: i64,
) -> Result<(Vec<LeasedDelivery>, ConsumerState), BrokerError> {
    let db = shared.db().await?;
    let mut connection = db.relaxed_writer().await?;
    let transaction = async {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        // Under the lock, for which it may have waited.
        let now = shared.clock.now();
        let Some(state) = ConsumerState::read(&mut tx, consumer).await? else {
            return Ok(None);
        };
        if state.is_blocked(consumer, now) {
            return Ok(Some((Vec::new(), state)));
        }
        let max = if consumer.ordered { 1 } else { max };
        let mut fetch = FetchTx {
            connection: &mut tx,
            consumer,
            instance: &db.instance,
            now,
            visible_at: now.saturating_add(state.ack_wait),
        };
        let mut leased = if state.has_due(now) {
            fetch.lease_due(max).await?
        } else {
            Vec::new()
        };
        let room = max - i64::try_from(leased.len()).unwrap_or(max);
        if room > 0 {
            fetch.lease_new(&state, room, &mut leased).await?;
        }
        tx.commit().await?;
        Ok(Some((leased, state)))
    };
    let result = transaction.await;
    let leased = connection.finish("fetch messages from", result)?;
    leased.ok_or_else(|| consumer.removed(&shared.storage))
}

/// The transaction of a fetch.
struct FetchTx<'a> {
    connection: &'a mut SqliteConnection,
    consumer: &'a Consumer,
    instance: &'a str,
    now: i64,
    visible_at: i64,
}

impl FetchTx<'_> {
    /// Leases pending deliveries that are due.
    async fn lease_due(&mut self, max: i64) -> Result<Vec<LeasedDelivery>, sqlx::Error> {
        let rows = sqlx::query(
            "SELECT m.seq, m.subject, m.published_at, m.headers, m.payload, p.delivery_count + 1 AS delivery_count \
             FROM pending p JOIN messages m ON m.seq = p.seq \
             WHERE p.consumer = ?1 AND (p.visible_at <= ?2 OR p.taken_at > ?2) ORDER BY p.seq LIMIT ?3",
        )
        .bind(self.consumer.id)
        .bind(self.now)
        .bind(max)
        .fetch_all(&mut *self.connection)
        .await?;
        let leased = rows.iter().map(|row| self.leased(row)).collect::<Result<Vec<_>, _>>()?;
        // These are all that are due up to the last of them.
        if let Some(last) = leased.last() {
            sqlx::query(
                "UPDATE pending SET delivery_count = delivery_count + 1, taken_at = ?2, visible_at = ?3 \
                 WHERE consumer = ?1 AND seq <= ?4 AND (visible_at <= ?2 OR taken_at > ?2)",
            )
            .bind(self.consumer.id)
            .bind(self.now)
            .bind(self.visible_at)
            .bind(last.seq)
            .execute(&mut *self.connection)
            .await?;
        }
        Ok(leased)
    }

    /// Leases at most `max` messages after the position and adds them to `leased`.
    async fn lease_new(
        &mut self,
        state: &ConsumerState,
        max: i64,
        leased: &mut Vec<LeasedDelivery>,
    ) -> Result<(), sqlx::Error> {
        let (Some(next), Some(last)) = (state.next, state.last) else {
            return Ok(());
        };
        let end = last.min(next.saturating_add(SCAN_MESSAGES - 1));
        let rows = sqlx::query(
            "SELECT seq, subject, published_at, headers, payload, 1 AS delivery_count \
             FROM messages WHERE seq > ? AND seq <= ? AND subject GLOB ? ORDER BY seq LIMIT ?",
        )
        .bind(state.position)
        .bind(end)
        .bind(glob(&self.consumer.subject))
        .bind(max)
        .fetch_all(&mut *self.connection)
        .await?;
        let position = match rows.last() {
            Some(row) if i64::try_from(rows.len()).is_ok_and(|found| found >= max) => row.try_get("seq")?,
            _ => end,
        };
        let before = leased.len();
        for row in &rows {
            if subject::matches(&self.consumer.subject, row.try_get("subject")?) {
                leased.push(self.leased(row)?);
            }
        }
        self.insert(&leased[before..]).await?;
        sqlx::query("UPDATE consumers SET position = ? WHERE id = ?")
            .bind(position)
            .bind(self.consumer.id)
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }

    /// Inserts the pending rows of new deliveries.
    async fn insert(&mut self, leased: &[LeasedDelivery]) -> Result<(), sqlx::Error> {
        if leased.is_empty() {
            return Ok(());
        }
        // A JSON list keeps the statement's text independent of the number of rows.
        let seqs = format!("{:?}", leased.iter().map(|leased| leased.seq).collect::<Vec<_>>());
        sqlx::query(
            "INSERT INTO pending (consumer, seq, delivery_count, taken_at, visible_at) \
             SELECT ?, value, 1, ?, ? FROM json_each(?)",
        )
        .bind(self.consumer.id)
        .bind(self.now)
        .bind(self.visible_at)
        .bind(seqs)
        .execute(&mut *self.connection)
        .await?;
        Ok(())
    }

    fn leased(&self, row: &SqliteRow) -> Result<LeasedDelivery, sqlx::Error> {
        Ok(LeasedDelivery {
            delivery: delivery(self.instance, row)?,
            seq: row.try_get("seq")?,
            delivery_count: row.try_get("delivery_count")?,
            leased_at: self.now,
        })
    }
}

/// A GLOB pattern for at least the subjects that `pattern` matches: its `*` also matches dots. Subjects have no other
/// characters with a meaning in GLOB.
fn glob(pattern: &str) -> String {
    pattern.replace('>', "*")
}
