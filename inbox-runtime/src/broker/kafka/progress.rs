//! How far a partition is done, and how much of that the broker has confirmed.

use std::{collections::VecDeque, time::Instant};

/// How far a partition is done: offsets of the next record.
///
/// A topic that is deleted and made anew begins at offset 0 again, and what was done of the old one says nothing about the new one.
/// So progress belongs to one *incarnation* of the partition, which are counted in the order in which they were seen.
#[derive(Debug, Default)]
pub(super) struct Progress {
    incarnation: u32,
    /// By what was acknowledged.
    done: Option<i64>,
    /// By an acknowledgement that must be confirmed before it counts.
    confirming: Option<i64>,
    /// By what the broker has confirmed.
    committed: Option<i64>,
    /// The offsets that were acknowledged and that the broker hasn't confirmed, in order.
    unconfirmed: VecDeque<i64>,
    /// The broker has refused the last commit: since when, and until when it is not tried again.
    refused: Option<(Instant, Instant)>,
}

impl Progress {
    /// The broker knows the group's place: it was committed before the partition was ours.
    pub(super) fn known(offset: i64) -> Self {
        Self {
            committed: Some(offset),
            ..Self::default()
        }
    }

    /// What is to be committed, if that is more than what is.
    pub(super) fn due(&self) -> Option<i64> {
        self.done
            .max(self.confirming)
            .filter(|&offset| Some(offset) > self.committed)
    }

    /// The same, unless the broker refused it just now.
    pub(super) fn due_at(&self, now: Instant) -> Option<i64> {
        self.due()
            .filter(|_| self.refused.is_none_or(|(_, until)| until <= now))
    }

    /// Until when nothing is committed, since the broker has refused it.
    pub(super) fn not_before(&self) -> Option<Instant> {
        self.due().and(self.refused).map(|(_, until)| until)
    }

    /// Which incarnation of the partition it belongs to.
    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The broker has confirmed that the record with that offset is done.
    pub(super) fn has(&self, offset: i64) -> bool {
        self.committed.is_some_and(|committed| committed > offset)
    }

    /// Everything before that offset is done, or is nothing to be done: the group begins there, or the broker has no records
    /// in between.
    pub(super) fn pass(&mut self, offset: i64) {
        self.done = self.done.max(Some(offset));
    }

    /// The record with that offset is done.
    pub(super) fn finish(&mut self, offset: i64) {
        self.confirming = None;
        self.done = self.done.max(Some(offset + 1));
        if !self.has(offset) {
            self.unconfirmed.push_back(offset);
        }
    }

    /// The record with that offset is to be committed before it counts as done.
    pub(super) fn confirm(&mut self, offset: i64) {
        self.confirming = Some(offset + 1);
    }

    /// That didn't come off.
    pub(super) fn not_confirmed(&mut self) {
        self.confirming = None;
    }

    /// The broker has confirmed that everything before that offset is done.
    pub(super) fn commit(&mut self, offset: i64) {
        self.refused = None;
        self.committed = self.committed.max(Some(offset));
        while self.unconfirmed.pop_front_if(|first| *first < offset).is_some() {}
    }

    /// The broker has refused to commit, and is asked again at that time. Returns since when it refuses.
    pub(super) fn refuse(&mut self, now: Instant, until: Instant) -> Instant {
        let since = self.refused.map_or(now, |(since, _)| since);
        self.refused = Some((since, until));
        since
    }

    /// How many acknowledgements the broker hasn't confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The partition was made anew. Nothing of it is done, and what was done of the old one can't be committed any more.
    pub(super) fn begin_anew(&mut self) {
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
        let mut progress = Progress::known(5);
        assert_eq!(progress.due(), None);
        progress.pass(5);
        assert_eq!(progress.due(), None);
        progress.finish(5);
        assert_eq!((progress.due(), progress.unconfirmed()), (Some(6), 1));
        progress.commit(6);
        assert_eq!((progress.due(), progress.unconfirmed()), (None, 0));
        assert!(progress.has(5) && !progress.has(6));
    }

    #[test]
    fn g14_what_the_broker_refused_is_due_again_later() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        let mut progress = Progress::default();
        progress.finish(0);
        progress.refuse(now, later);
        assert_eq!((progress.due_at(now), progress.due_at(later)), (None, Some(1)));
        progress.commit(1);
        progress.finish(1);
        assert_eq!(progress.due_at(now), Some(2));
    }

    #[test]
    fn g12_a_partition_that_was_made_anew_begins_at_its_first_offset() {
        let mut progress = Progress::known(40);
        progress.finish(40);
        progress.begin_anew();
        assert_eq!((progress.due(), progress.unconfirmed()), (None, 0));
        progress.pass(0);
        assert_eq!((progress.due(), progress.incarnation()), (Some(0), 1));
    }
}
