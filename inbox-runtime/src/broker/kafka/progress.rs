//! How far a partition is processed, and how much of that is committed.

use std::{collections::VecDeque, time::Instant};

/// The processed and the committed offset of a partition. As in Kafka, each is the offset of the *next* record.
///
/// A topic that is deleted and recreated starts at offset 0 again, and the old progress says nothing about the new
/// topic. Progress therefore belongs to one *incarnation* of the partition; they are numbered in the order in which
/// they were seen.
#[derive(Debug, Default)]
pub(super) struct CommitProgress {
    incarnation: u32,
    /// Up to what was acknowledged.
    processed: Option<i64>,
    /// Up to an acknowledgement that counts only once it is committed.
    confirming: Option<i64>,
    /// Up to what the broker has confirmed.
    committed: Option<i64>,
    /// Acknowledged offsets that the broker hasn't confirmed, in order.
    unconfirmed: VecDeque<i64>,
    /// The last commit was refused: since when, and until when it is not retried.
    refused: Option<(Instant, Instant)>,
}

impl CommitProgress {
    /// A partition with a committed offset.
    pub(super) fn committed_at(offset: i64) -> Self {
        Self {
            committed: Some(offset),
            ..Self::default()
        }
    }

    /// The offset to commit, if it is ahead of the committed one.
    pub(super) fn uncommitted(&self) -> Option<i64> {
        self.processed
            .max(self.confirming)
            .filter(|&offset| Some(offset) > self.committed)
    }

    /// The same, unless a refused commit is not to be retried yet.
    pub(super) fn due_at(&self, now: Instant) -> Option<i64> {
        self.uncommitted()
            .filter(|_| self.refused.is_none_or(|(_, until)| until <= now))
    }

    /// When a refused commit is retried.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.uncommitted().and(self.refused).map(|(_, until)| until)
    }

    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Whether the record with that offset is committed.
    pub(super) fn is_committed(&self, offset: i64) -> bool {
        self.committed.is_some_and(|committed| committed > offset)
    }

    /// Everything before that offset is processed, or there is nothing to process: the group starts there, or the
    /// offsets before it hold no messages.
    pub(super) fn skip_to(&mut self, offset: i64) {
        self.processed = self.processed.max(Some(offset));
    }

    /// The record with that offset was acknowledged.
    pub(super) fn record_ack(&mut self, offset: i64) {
        self.confirming = None;
        self.processed = self.processed.max(Some(offset + 1));
        if !self.is_committed(offset) {
            self.unconfirmed.push_back(offset);
        }
    }

    /// The record with that offset is to be committed before it counts as acknowledged.
    pub(super) fn begin_confirm(&mut self, offset: i64) {
        self.confirming = Some(offset + 1);
    }

    /// That commit failed.
    pub(super) fn cancel_confirm(&mut self) {
        self.confirming = None;
    }

    /// The broker has committed that offset.
    pub(super) fn record_commit(&mut self, offset: i64) {
        self.refused = None;
        self.committed = self.committed.max(Some(offset));
        while self.unconfirmed.pop_front_if(|first| *first < offset).is_some() {}
    }

    /// The broker has refused a commit, which is retried at `until`. Returns since when it refuses.
    pub(super) fn record_refusal(&mut self, now: Instant, until: Instant) -> Instant {
        let since = self.refused.map_or(now, |(since, _)| since);
        self.refused = Some((since, until));
        since
    }

    /// How many acknowledgements the broker hasn't confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The topic was recreated: nothing of the new one is processed, and the progress of the old one can't be committed
    /// any more.
    pub(super) fn begin_incarnation(&mut self) {
        *self = Self {
            incarnation: self.incarnation + 1,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ahead_of_the_committed_offset_is_due() {
        let mut progress = CommitProgress::committed_at(5);
        assert_eq!(progress.uncommitted(), None);
        progress.skip_to(5);
        assert_eq!(progress.uncommitted(), None);
        progress.record_ack(5);
        assert_eq!((progress.uncommitted(), progress.unconfirmed()), (Some(6), 1));
        progress.record_commit(6);
        assert_eq!((progress.uncommitted(), progress.unconfirmed()), (None, 0));
        assert!(progress.is_committed(5) && !progress.is_committed(6));
    }

    #[test]
    fn g14_a_refused_commit_is_retried_later() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        let mut progress = CommitProgress::default();
        progress.record_ack(0);
        progress.record_refusal(now, later);
        assert_eq!((progress.due_at(now), progress.due_at(later)), (None, Some(1)));
        progress.record_commit(1);
        progress.record_ack(1);
        assert_eq!(progress.due_at(now), Some(2));
    }

    #[test]
    fn g12_a_recreated_partition_starts_at_its_first_offset() {
        let mut progress = CommitProgress::committed_at(40);
        progress.record_ack(40);
        progress.begin_incarnation();
        assert_eq!((progress.uncommitted(), progress.unconfirmed()), (None, 0));
        progress.skip_to(0);
        assert_eq!((progress.uncommitted(), progress.incarnation()), (Some(0), 1));
    }
}
