//! Deletes messages that every consumer has settled, after the retention time, and shrinks the file.
//!
//! Each step is one short transaction, so that writers don't wait and a process may die between any two. Whether a
//! message is settled is decided under the write lock: a consumer that is created concurrently finds the message, or
//! doesn't.

use std::collections::BTreeSet;

use sqlx::{Connection, SqliteConnection};

use super::{
    limits::{SPARE_PAGES, STEP_BYTES, STEP_MESSAGES},
    shared::EmbeddedShared,
};
use crate::broker::{BrokerError, subject};

/// A time that is later than now by this, in milliseconds, was set before the clock was put back.
const CLOCK_TOLERANCE: i64 = 60_000;

/// Deletes some messages that were settled more than `keep` milliseconds ago. Returns whether there may be more.
pub(super) async fn delete_settled(shared: &EmbeddedShared, keep: i64) -> Result<bool, BrokerError> {
    let now = shared.clock.now();
    let due = now.saturating_sub(keep);
    if !any_due(shared, due, now).await? {
        return Ok(false);
    }
    let mut connection = shared.db().await?.relaxed_writer().await?;
    let step = async {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        correct_future_times(&mut tx, now).await?;
        let candidates = candidates(&mut tx, due).await?;
        let owners = MessageOwners::read(&mut tx, &candidates).await?;
        let gone = candidates.iter().filter(|candidate| owners.have_settled(candidate));
        let gone: Vec<_> = gone.map(|candidate| candidate.seq).collect();
        let seen: Vec<_> = candidates.iter().map(|candidate| candidate.seq).collect();
        delete(
            &mut tx,
            "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))",
            &gone,
        )
        .await?;
        // The last acknowledgement of one that isn't settled inserts it again.
        delete(
            &mut tx,
            "DELETE FROM settled WHERE seq IN (SELECT value FROM json_each(?))",
            &seen,
        )
        .await?;
        tx.commit().await?;
        Ok((gone.len(), !seen.is_empty()))
    };
    let result = step.await;
    let (deleted, more) = connection.finish("delete settled messages of", result)?;
    if deleted > 0 {
        tracing::trace!("{deleted} settled messages were deleted");
    }
    Ok(more)
}

async fn any_due(shared: &EmbeddedShared, due: i64, now: i64) -> Result<bool, BrokerError> {
    let mut connection = shared.db().await?.reader().await?;
    let any = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM settled WHERE at <= ?) OR EXISTS (SELECT 1 FROM settled WHERE at > ?)",
    )
    .bind(due)
    .bind(now.saturating_add(CLOCK_TOLERANCE))
    .fetch_one(&mut *connection)
    .await;
    connection.finish("look for settled messages in", any)
}

/// Replaces times in the future by now, or they could keep messages for years.
async fn correct_future_times(connection: &mut SqliteConnection, now: i64) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE settled SET at = ? WHERE seq IN (SELECT seq FROM settled WHERE at > ? LIMIT ?)")
        .bind(now)
        .bind(now.saturating_add(CLOCK_TOLERANCE))
        .bind(STEP_MESSAGES)
        .execute(connection)
        .await?;
    Ok(())
}

/// A message that may be settled.
#[derive(Debug)]
struct Candidate {
    seq: i64,
    /// `None` if the message was deleted already.
    subject: Option<String>,
}

async fn candidates(connection: &mut SqliteConnection, due: i64) -> Result<Vec<Candidate>, sqlx::Error> {
    let rows: Vec<(i64, Option<String>, i64)> = sqlx::query_as(
        "SELECT s.seq, m.subject, coalesce(length(m.headers) + length(m.payload), 0) \
         FROM settled s LEFT JOIN messages m ON m.seq = s.seq WHERE s.at <= ? ORDER BY s.at LIMIT ?",
    )
    .bind(due)
    .bind(STEP_MESSAGES)
    .fetch_all(connection)
    .await?;
    // At least one, however large.
    let mut bytes = 0;
    let within = |(.., size): &(i64, Option<String>, i64)| {
        let room = bytes < STEP_BYTES;
        bytes += size;
        room
    };
    let rows = rows.into_iter().take_while(within);
    Ok(rows.map(|(seq, subject, _)| Candidate { seq, subject }).collect())
}

/// Whose the messages are, and which candidates are pending.
#[derive(Debug)]
struct MessageOwners {
    existing: Vec<Span>,
    removed: Vec<Span>,
    pending: BTreeSet<i64>,
}

/// The messages of a consumer: those of its subject after `began_after`.
#[derive(Debug)]
struct Span {
    subject: String,
    began_after: i64,
    /// Its position; of a removed consumer, the last message when it was removed.
    end: i64,
}

impl Span {
    fn new((subject, began_after, end): (String, i64, i64)) -> Self {
        Self {
            subject,
            began_after,
            end,
        }
    }

    fn has(&self, seq: i64, subject: &str) -> bool {
        seq > self.began_after && subject::matches(&self.subject, subject)
    }
}

impl MessageOwners {
    async fn read(connection: &mut SqliteConnection, candidates: &[Candidate]) -> Result<Self, sqlx::Error> {
        let existing = sqlx::query_as("SELECT subject, began_after, position FROM consumers")
            .fetch_all(&mut *connection)
            .await?;
        let removed = sqlx::query_as("SELECT subject, began_after, ended_at FROM removed")
            .fetch_all(&mut *connection)
            .await?;
        let seqs: Vec<_> = candidates.iter().map(|candidate| candidate.seq).collect();
        let pending: Vec<i64> = sqlx::query_scalar(
            "SELECT p.seq FROM consumers c JOIN json_each(?) j JOIN pending p ON p.consumer = c.id AND p.seq = j.value",
        )
        .bind(format!("{seqs:?}"))
        .fetch_all(connection)
        .await?;
        Ok(Self {
            existing: existing.into_iter().map(Span::new).collect(),
            removed: removed.into_iter().map(Span::new).collect(),
            pending: pending.into_iter().collect(),
        })
    }

    /// Whether the message belongs to a consumer, and all that it belongs to have settled it. One that belongs to none
    /// is kept for future consumers.
    fn have_settled(&self, candidate: &Candidate) -> bool {
        let Candidate {
            seq,
            subject: Some(subject),
        } = candidate
        else {
            return false;
        };
        let seq = *seq;
        let (unscanned, scanned): (Vec<_>, Vec<_>) = (self.existing.iter())
            .filter(|consumer| consumer.has(seq, subject))
            .partition(|consumer| consumer.end < seq);
        let was_removed = |consumer: &Span| consumer.end >= seq && consumer.has(seq, subject);
        let is_owned = !scanned.is_empty() || self.removed.iter().any(was_removed);
        is_owned && unscanned.is_empty() && !self.pending.contains(&seq)
    }
}

async fn delete(connection: &mut SqliteConnection, sql: &'static str, seqs: &[i64]) -> Result<(), sqlx::Error> {
    if !seqs.is_empty() {
        sqlx::query(sql).bind(format!("{seqs:?}")).execute(connection).await?;
    }
    Ok(())
}

/// Returns some free pages to the file system. Returns whether there are more than are kept for the next writes: an
/// eighth of the file.
pub(super) async fn shrink(shared: &EmbeddedShared) -> Result<bool, BrokerError> {
    let mut connection = shared.db().await?.reader().await?;
    let sizes = sqlx::query_as(
        "SELECT (SELECT auto_vacuum FROM pragma_auto_vacuum), (SELECT freelist_count FROM pragma_freelist_count), \
         (SELECT page_count FROM pragma_page_count)",
    )
    .fetch_one(&mut *connection)
    .await;
    let (mode, free, pages): (i64, i64, i64) = connection.finish("read the size of", sizes)?;
    // A file of version 1 that was too large to be vacuumed can't shrink.
    if mode == 0 || free <= (pages / 8).max(SPARE_PAGES) {
        return Ok(false);
    }
    let mut connection = shared.db().await?.relaxed_writer().await?;
    let vacuumed = sqlx::query("PRAGMA incremental_vacuum(256)")
        .execute(&mut *connection)
        .await;
    connection.finish("shrink the file of", vacuumed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(subject: &str, began_after: i64, end: i64) -> Span {
        Span::new((subject.to_owned(), began_after, end))
    }

    #[test]
    fn a_message_is_settled_when_all_its_consumers_have_settled_it() {
        let settled = |existing: Vec<Span>, removed: Vec<Span>, pending: &[i64]| {
            let owners = MessageOwners {
                existing,
                removed,
                pending: pending.iter().copied().collect(),
            };
            owners.have_settled(&Candidate {
                seq: 5,
                subject: Some("a.b".to_owned()),
            })
        };
        assert!(settled(vec![span("a.*", 0, 5)], vec![], &[]));
        assert!(!settled(vec![span("a.*", 0, 5)], vec![], &[5]), "it is pending");
        assert!(!settled(vec![span("a.*", 0, 4)], vec![], &[]), "it is waiting");
        assert!(
            !settled(vec![span("a.*", 0, 5), span(">", 0, 4)], vec![], &[]),
            "another consumer hasn't scanned it"
        );
        assert!(
            settled(vec![span("a.*", 0, 5), span("a.*.c", 0, 4)], vec![], &[]),
            "the other consumer has another subject"
        );
        assert!(
            settled(vec![span("a.*", 0, 5), span("a.*", 5, 7)], vec![], &[]),
            "the other consumer started after it"
        );
        assert!(
            !settled(vec![span("a.*", 5, 7)], vec![], &[]),
            "it belongs to no consumer"
        );
        assert!(!settled(vec![], vec![], &[]), "there is no consumer");
        assert!(
            settled(vec![], vec![span("a.b", 0, 9)], &[]),
            "its consumer was removed"
        );
        assert!(
            !settled(vec![], vec![span("a.b", 0, 4)], &[]),
            "it was published after its consumer was removed"
        );
    }
}
