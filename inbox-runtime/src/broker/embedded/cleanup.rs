//! Retention: messages that every durable has settled are deleted a while after their last acknowledgement, and the file
//! gives back the space.
//!
//! Each step is one short transaction, so that nobody waits for it and a process may die between any two of them. Whether a
//! message is settled is decided behind the lock that its deletion needs: a group that is made meanwhile finds it, or doesn't.

use std::collections::BTreeSet;

use sqlx::{Connection, SqliteConnection};

use super::{
    Shared,
    config::{SLACK, STEP_BYTES, STEP_MESSAGES},
};
use crate::broker::{BrokerError, subject};

/// A time that is so much later than now, in milliseconds, was set by a clock that was put back since.
const AHEAD: i64 = 60_000;

/// Deletes some messages that were settled more than `keep` milliseconds ago. Returns whether there may be more.
pub(super) async fn delete_settled(shared: &Shared, keep: i64) -> Result<bool, BrokerError> {
    let now = shared.clock.now();
    let due = now.saturating_sub(keep);
    if !any_due(shared, due, now).await? {
        return Ok(false);
    }
    let mut writing = shared.db().await?.relaxed().await?;
    let step = async {
        let mut tx = writing.begin_with("BEGIN IMMEDIATE").await?;
        put_back(&mut tx, now).await?;
        let candidates = candidates(&mut tx, due).await?;
        let durables = Durables::read(&mut tx, &candidates).await?;
        let gone = candidates.iter().filter(|candidate| durables.have_settled(candidate));
        let gone: Vec<_> = gone.map(|candidate| candidate.seq).collect();
        let seen: Vec<_> = candidates.iter().map(|candidate| candidate.seq).collect();
        delete(
            &mut tx,
            "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))",
            &gone,
        )
        .await?;
        // One that isn't settled yet comes back with its last acknowledgement.
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
    let (deleted, more) = writing.done("delete settled messages of", result)?;
    if deleted > 0 {
        tracing::trace!("{deleted} settled messages were deleted");
    }
    Ok(more)
}

async fn any_due(shared: &Shared, due: i64, now: i64) -> Result<bool, BrokerError> {
    let mut reading = shared.db().await?.reading().await?;
    let any = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM settled WHERE at <= ?) OR EXISTS (SELECT 1 FROM settled WHERE at > ?)",
    )
    .bind(due)
    .bind(now.saturating_add(AHEAD))
    .fetch_one(&mut *reading)
    .await;
    reading.done("look for settled messages in", any)
}

/// Lets times that a clock has put into the future begin now, or they could hold messages for years.
async fn put_back(connection: &mut SqliteConnection, now: i64) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE settled SET at = ? WHERE seq IN (SELECT seq FROM settled WHERE at > ? LIMIT ?)")
        .bind(now)
        .bind(now.saturating_add(AHEAD))
        .bind(STEP_MESSAGES)
        .execute(connection)
        .await?;
    Ok(())
}

/// A message that may be settled.
#[derive(Debug)]
struct Candidate {
    seq: i64,
    /// `None`: the message is gone already.
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

/// The durables, and which of the candidates they haven't settled.
#[derive(Debug)]
struct Durables {
    open: Vec<Span>,
    removed: Vec<Span>,
    pending: BTreeSet<i64>,
}

/// The messages that are a durable's: those of its subject from behind `began_after` on.
#[derive(Debug)]
struct Span {
    subject: String,
    began_after: i64,
    /// Up to here it was looked at what is there; of a durable that was removed, its last message.
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

impl Durables {
    async fn read(connection: &mut SqliteConnection, candidates: &[Candidate]) -> Result<Self, sqlx::Error> {
        let open = sqlx::query_as("SELECT subject, began_after, position FROM consumers")
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
            open: open.into_iter().map(Span::new).collect(),
            removed: removed.into_iter().map(Span::new).collect(),
            pending: pending.into_iter().collect(),
        })
    }

    /// Whether the message was somebody's, and everybody whose it is has settled it. One that was nobody's is kept: a group
    /// may come for it.
    fn have_settled(&self, candidate: &Candidate) -> bool {
        let Candidate {
            seq,
            subject: Some(subject),
        } = candidate
        else {
            return false;
        };
        let seq = *seq;
        let (ahead, behind): (Vec<_>, Vec<_>) = (self.open.iter())
            .filter(|durable| durable.has(seq, subject))
            .partition(|durable| durable.end < seq);
        let was_removed = |durable: &Span| durable.end >= seq && durable.has(seq, subject);
        let is_somebodys = !behind.is_empty() || self.removed.iter().any(was_removed);
        is_somebodys && ahead.is_empty() && !self.pending.contains(&seq)
    }
}

async fn delete(connection: &mut SqliteConnection, sql: &'static str, seqs: &[i64]) -> Result<(), sqlx::Error> {
    if !seqs.is_empty() {
        sqlx::query(sql).bind(format!("{seqs:?}")).execute(connection).await?;
    }
    Ok(())
}

/// Gives some free pages of the file back to the file system. Returns whether there are more of them than what is written
/// soon needs anyway: an eighth of the file.
pub(super) async fn shrink(shared: &Shared) -> Result<bool, BrokerError> {
    let mut reading = shared.db().await?.reading().await?;
    let sizes = sqlx::query_as(
        "SELECT (SELECT auto_vacuum FROM pragma_auto_vacuum), (SELECT freelist_count FROM pragma_freelist_count), \
         (SELECT page_count FROM pragma_page_count)",
    )
    .fetch_one(&mut *reading)
    .await;
    let (mode, free, pages): (i64, i64, i64) = reading.done("read the size of", sizes)?;
    // A file of version 1 that was too large to be changed at the start only uses its free pages again.
    if mode == 0 || free <= (pages / 8).max(SLACK) {
        return Ok(false);
    }
    let mut writing = shared.db().await?.relaxed().await?;
    let vacuumed = sqlx::query("PRAGMA incremental_vacuum(256)")
        .execute(&mut *writing)
        .await;
    writing.done("shrink the file of", vacuumed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(subject: &str, began_after: i64, end: i64) -> Span {
        Span::new((subject.to_owned(), began_after, end))
    }

    #[test]
    fn a_message_is_settled_when_all_whose_it_is_have_settled_it() {
        let settled = |open: Vec<Span>, removed: Vec<Span>, pending: &[i64]| {
            let durables = Durables {
                open,
                removed,
                pending: pending.iter().copied().collect(),
            };
            durables.have_settled(&Candidate {
                seq: 5,
                subject: Some("a.b".to_owned()),
            })
        };
        assert!(settled(vec![span("a.*", 0, 5)], vec![], &[]));
        assert!(!settled(vec![span("a.*", 0, 5)], vec![], &[5]), "it is out");
        assert!(!settled(vec![span("a.*", 0, 4)], vec![], &[]), "it waits");
        assert!(
            !settled(vec![span("a.*", 0, 5), span(">", 0, 4)], vec![], &[]),
            "of another one"
        );
        assert!(
            settled(vec![span("a.*", 0, 5), span("a.*.c", 0, 4)], vec![], &[]),
            "not its"
        );
        assert!(
            settled(vec![span("a.*", 0, 5), span("a.*", 5, 7)], vec![], &[]),
            "before it began"
        );
        assert!(!settled(vec![span("a.*", 5, 7)], vec![], &[]), "nobody has had it");
        assert!(!settled(vec![], vec![], &[]), "there is nobody");
        assert!(settled(vec![], vec![span("a.b", 0, 9)], &[]), "it was removed");
        assert!(!settled(vec![], vec![span("a.b", 0, 4)], &[]), "it came later");
    }
}
