//! The outbox in PostgreSQL, as relays work on it. Lanes are advisory locks of a transaction, which hold neither a transaction id nor
//! a snapshot while the broker is waited for, and work behind a transaction pooler. No statement is prepared by name.

use futures_util::future::BoxFuture;
use sqlx::Row;

use super::{
    errors::{own_statement, unavailable},
    pool::{OwnTx, PostgresStore},
};
use crate::store::{
    LaneRequest, OutboxHeads, OutboxLane, OutboxRow, OutboxStore, ParkedMessage, StoreError,
    encoding::Charset,
    reader::{RowReader, read_all, read_heads},
};

/// How many lanes there are. The lane of a message is a column, so this can't change.
pub(super) const LANES: u16 = 16;

/// The lane that the lock of those who move delayed messages has.
const MOVING: i64 = 16;

/// The row with lane -1 is a delayed message that is due. It is one simple query, so that an idle relay costs one statement, and a
/// transaction pooler can't split it.
const HEADS: &str = "
    SELECT n AS lane, (extract(epoch FROM clock_timestamp() - head.created_at) * 1000)::bigint AS age
    FROM generate_series(0::bigint, 15) AS lanes (n)
    CROSS JOIN LATERAL (SELECT created_at FROM inbox_outbox WHERE lane = n ORDER BY id LIMIT 1) AS head
    UNION ALL
    (SELECT -1, 0 FROM inbox_outbox_later WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT 1)";

/// The second statement of a transaction sees what was deleted by whoever had the lock before; this one would not. A broker that
/// takes long is no reason for the server to end the transaction, and messages whose deletion a crash forgets are published again.
const LOCK: &str = "
    SELECT pg_try_advisory_xact_lock((1768841839::bigint << 32) # ('inbox_outbox'::regclass::oid::bigint << 5) # $1::bigint),
        set_config('idle_in_transaction_session_timeout', '0', true), set_config('synchronous_commit', 'off', true)";

/// Of the first `$3` messages those before which there are less than `$4` bytes.
const FETCH: &str = "
    SELECT id, subject, message_key, headers, payload FROM (
        SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before FROM (
            SELECT id, subject, message_key, headers, payload,
                octet_length(headers)::bigint + coalesce(octet_length(payload), 0)::bigint AS size
            FROM inbox_outbox
            WHERE lane = $1 AND subject <> ALL ($2::text[]) AND ($5::text IS NULL OR subject = $5)
            ORDER BY id LIMIT $3
        ) AS page
    ) AS sized
    WHERE before < $4 ORDER BY id";

const DELETE: &str = "DELETE FROM inbox_outbox WHERE lane = $1 AND id = ANY ($2::bigint[])";

const PARK: &str = "
    WITH refused AS (
        DELETE FROM inbox_outbox WHERE lane = $1 AND id = $2
        RETURNING lane, message_id, subject, message_key, headers, payload, created_at
    )
    INSERT INTO inbox_outbox_parked (lane, message_id, subject, message_key, headers, payload, created_at, error)
    SELECT lane, message_id, subject, message_key, headers, payload, created_at, $3 FROM refused";

const MOVE_DUE: &str = "
    WITH due AS (
        DELETE FROM inbox_outbox_later WHERE (due_at, id) IN (
            SELECT due_at, id FROM inbox_outbox_later WHERE due_at <= clock_timestamp() ORDER BY due_at, id LIMIT $1
        )
        RETURNING due_at, id, lane, message_id, subject, message_key, headers, payload
    )
    INSERT INTO inbox_outbox (lane, message_id, subject, message_key, headers, payload)
    SELECT lane, message_id, subject, message_key, headers, payload FROM due ORDER BY due_at, id";

const COUNT: &str = "SELECT count(*) FROM (SELECT FROM inbox_outbox LIMIT $1) AS counted";
const COUNT_PARKED: &str = "SELECT count(*) FROM (SELECT FROM inbox_outbox_parked LIMIT $1) AS counted";

const LIST_PARKED: &str = "
    SELECT id, message_id, subject, message_key, headers, payload, error,
        (extract(epoch FROM parked_at) * 1000)::bigint AS parked_at
    FROM inbox_outbox_parked WHERE id > $1 ORDER BY id LIMIT $2";

const REPLAY_PARKED: &str = "
    WITH parked AS (
        DELETE FROM inbox_outbox_parked WHERE id = $1
        RETURNING lane, message_id, subject, message_key, headers, payload
    )
    INSERT INTO inbox_outbox (lane, message_id, subject, message_key, headers, payload)
    SELECT lane, message_id, subject, message_key, headers, payload FROM parked";

const DISCARD_PARKED: &str = "DELETE FROM inbox_outbox_parked WHERE id = $1";

/// A relay's own transaction: whatever the isolation of the session is.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

impl PostgresStore {
    /// Tries to take the lock of a lane, or that of those who move delayed messages.
    async fn lock_lane(&self, lane: i64) -> Result<Option<OwnTx>, StoreError> {
        let mut tx = self.begin_relay(BEGIN).await?;
        let row = sqlx::query(LOCK)
            .persistent(false)
            .bind(lane)
            .fetch_one(&mut *tx.conn)
            .await
            .map_err(own_statement)?;
        if row.try_get(0).map_err(unavailable)? {
            return Ok(Some(tx));
        }
        tx.end().await?;
        Ok(None)
    }

    /// Runs a statement whose argument is a number. Returns how many rows it has written.
    async fn write_by_number(&self, sql: &'static str, number: i64) -> Result<u64, StoreError> {
        let mut tx = self.begin_relay("BEGIN READ WRITE").await?;
        let done = sqlx::query(sql)
            .persistent(false)
            .bind(number)
            .execute(&mut *tx.conn)
            .await
            .map_err(own_statement)?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    async fn count_up_to(&self, sql: &'static str, max: u64) -> Result<u64, StoreError> {
        let mut tx = self.begin_relay("BEGIN READ ONLY").await?;
        let row = sqlx::query(sql)
            .persistent(false)
            .bind(i64::try_from(max).unwrap_or(i64::MAX))
            .fetch_one(&mut *tx.conn)
            .await
            .map_err(own_statement)?;
        tx.end().await?;
        let count: i64 = row.try_get(0).map_err(unavailable)?;
        Ok(count.unsigned_abs())
    }
}

impl OutboxStore for PostgresStore {
    fn outbox_heads(&self) -> BoxFuture<'_, Result<OutboxHeads, StoreError>> {
        Box::pin(async move {
            let mut conn = self.relay_pool().acquire().await.map_err(unavailable)?;
            let rows = sqlx::raw_sql(HEADS)
                .fetch_all(&mut *conn)
                .await
                .map_err(own_statement)?;
            read_heads(&rows).map_err(unavailable)
        })
    }

    fn take_lane<'a>(
        &'a self,
        request: LaneRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Box<dyn OutboxLane>>, StoreError>> {
        Box::pin(async move {
            let lane = i64::from(request.lane);
            // Not while a lane is held.
            let charset = self.charset().await?;
            let Some(mut tx) = self.lock_lane(lane).await? else {
                return Ok(None);
            };
            let rows = sqlx::query(FETCH)
                .persistent(false)
                .bind(lane)
                .bind(request.skip)
                .bind(i64::from(request.max_messages))
                .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
                .bind(request.only)
                .fetch_all(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            let rows = read_all(&rows, RowReader::outgoing).map_err(unavailable)?;
            Ok(Some(Box::new(PostgresLane {
                tx,
                lane,
                rows,
                charset,
            }) as Box<dyn OutboxLane>))
        })
    }

    fn move_due(&self, max: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            // One at a time, so that the messages of a key are moved in the order in which they are due.
            let Some(mut tx) = self.lock_lane(MOVING).await? else {
                return Ok(0);
            };
            let moved = sqlx::query(MOVE_DUE)
                .persistent(false)
                .bind(i64::from(max))
                .execute(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.commit().await?;
            Ok(moved.rows_affected())
        })
    }

    fn count_outbox(&self, max: u64) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.count_up_to(COUNT, max))
    }

    fn count_parked(&self, max: u64) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.count_up_to(COUNT_PARKED, max))
    }

    fn parked(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>> {
        Box::pin(async move {
            let mut tx = self.begin_relay("BEGIN READ ONLY").await?;
            let rows = sqlx::query(LIST_PARKED)
                .persistent(false)
                .bind(after)
                .bind(i64::from(limit))
                .fetch_all(&mut *tx.conn)
                .await
                .map_err(own_statement)?;
            tx.end().await?;
            read_all(&rows, RowReader::parked).map_err(unavailable)
        })
    }

    fn replay_parked(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { Ok(self.write_by_number(REPLAY_PARKED, id).await? > 0) })
    }

    fn discard_parked(&self, id: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { Ok(self.write_by_number(DISCARD_PARKED, id).await? > 0) })
    }
}

/// A lane whose lock this transaction has.
struct PostgresLane {
    tx: OwnTx,
    lane: i64,
    rows: Vec<OutboxRow>,
    charset: Charset,
}

impl OutboxLane for PostgresLane {
    fn take_rows(&mut self) -> Vec<OutboxRow> {
        std::mem::take(&mut self.rows)
    }

    fn finish(
        mut self: Box<Self>,
        confirmed: Vec<i64>,
        refused: Vec<(i64, String)>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move {
            let conn = &mut *self.tx.conn;
            if !confirmed.is_empty() {
                let deleted = sqlx::query(DELETE)
                    .persistent(false)
                    .bind(self.lane)
                    .bind(confirmed)
                    .execute(&mut *conn)
                    .await;
                deleted.map_err(own_statement)?;
            }
            for (id, reason) in refused {
                let parked = sqlx::query(PARK)
                    .persistent(false)
                    .bind(self.lane)
                    .bind(id)
                    .bind(self.charset.error(&reason))
                    .execute(&mut *conn)
                    .await;
                parked.map_err(own_statement)?;
            }
            self.tx.commit().await
        })
    }
}
