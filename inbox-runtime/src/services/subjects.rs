//! What one relay remembers of an outbox: the subjects that the broker doesn't take now.
//!
//! It does not remember how far it is. Each batch begins at the beginning of its lane: a message that was committed later than others
//! behind it must not be passed by the next one of its key.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::backoff::Backoff;

/// How long a right may be missing before the messages that need it are parked.
const GRANT_WAIT: Duration = Duration::from_mins(5);
/// The wait before a subject that the broker didn't take is tried again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

/// The subjects of an outbox that wait.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    waiting: BTreeMap<String, Waiting>,
    /// Since when the right to publish to a subject is missing.
    denied: BTreeMap<String, Instant>,
}

/// A subject that the broker doesn't take now.
#[derive(Debug)]
struct Waiting {
    /// The lane in which it is tried again.
    lane: u16,
    until: Instant,
    failures: u32,
    why: String,
    /// It is being tried.
    on_trial: bool,
}

impl Subjects {
    /// The subjects that are left out of batches.
    pub(super) fn skipped(&self) -> Vec<String> {
        self.waiting.keys().cloned().collect()
    }

    /// The subjects for which the right has been missing for so long that their messages are parked.
    pub(super) fn parked(&self) -> Vec<String> {
        let denied = self.denied.iter().filter(|(_, since)| since.elapsed() >= GRANT_WAIT);
        denied.map(|(subject, _)| subject.clone()).collect()
    }

    /// The right to publish to a subject is missing.
    pub(super) fn deny(&mut self, subject: &str) {
        self.denied.entry(subject.to_owned()).or_insert_with(Instant::now);
    }

    /// A message of that subject was published.
    pub(super) fn granted(&mut self, subject: &str) {
        self.denied.remove(subject);
    }

    /// The broker doesn't take a subject now, of which that lane has a message: it is left out of all lanes until it has been tried.
    pub(super) fn wait(&mut self, subject: &str, lane: u16, why: &str) {
        let now = Instant::now();
        let waiting = self.waiting.entry(subject.to_owned()).or_insert_with(|| Waiting {
            lane,
            until: now,
            failures: 0,
            why: String::new(),
            on_trial: true,
        });
        if std::mem::take(&mut waiting.on_trial) {
            waiting.lane = lane;
            waiting.failures += 1;
            waiting.until = now + BACKOFF.pause(waiting.failures);
            why.clone_into(&mut waiting.why);
        }
    }

    /// The next subject whose turn it is to be tried, with the lane.
    pub(super) fn begin_trial(&mut self) -> Option<(String, u16)> {
        let now = Instant::now();
        let due = self.waiting.iter_mut();
        let due = due.filter(|(_, waiting)| waiting.until <= now && !waiting.on_trial);
        let (subject, waiting) = due.min_by_key(|(_, waiting)| waiting.until)?;
        waiting.on_trial = true;
        Some((subject.clone(), waiting.lane))
    }

    /// The trial of a subject could not be made: it waits as long again.
    pub(super) fn postpone(&mut self, subject: &str) {
        if let Some(waiting) = self.waiting.get_mut(subject) {
            waiting.on_trial = false;
            waiting.until = Instant::now() + BACKOFF.pause(waiting.failures);
        }
    }

    /// The broker takes that subject again.
    pub(super) fn resume(&mut self, subject: &str) {
        self.waiting.remove(subject);
    }

    /// How long it is until a subject that waits is tried again.
    pub(super) fn next_trial(&self) -> Option<Duration> {
        let waiting = self.waiting.values().filter(|waiting| !waiting.on_trial);
        let next = waiting.map(|waiting| waiting.until).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The subjects that wait, each with the reason.
    pub(super) fn waiting(&self) -> BTreeMap<String, String> {
        let all = self.waiting.iter();
        all.map(|(subject, waiting)| (subject.clone(), waiting.why.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_that_waits_is_left_out_until_one_message_of_it_was_taken() {
        let mut subjects = Subjects::default();
        subjects.wait("a", 2, "no stream");
        subjects.wait("a", 4, "no stream");
        assert_eq!(subjects.waiting()["a"], "no stream");
        assert_eq!(subjects.begin_trial(), None, "not yet");
        subjects.waiting.get_mut("a").expect("it waits").until = Instant::now();
        assert_eq!(subjects.begin_trial(), Some(("a".to_owned(), 2)), "in the first lane");
        assert_eq!(
            (subjects.begin_trial(), subjects.next_trial()),
            (None, None),
            "one at a time"
        );
        assert_eq!(subjects.skipped(), ["a"], "of the batches, until it is taken");
        subjects.resume("a");
        assert_eq!(subjects.skipped(), [""; 0]);
    }

    #[test]
    fn a_trial_that_fails_waits_longer_and_one_that_could_not_be_made_as_long() {
        let mut subjects = Subjects::default();
        for failures in 1..=12 {
            subjects.wait("a", 1, "no stream");
            assert_eq!(subjects.waiting["a"].failures, failures);
            subjects.waiting.get_mut("a").expect("it waits").until = Instant::now();
            assert_eq!(subjects.begin_trial(), Some(("a".to_owned(), 1)));
        }
        subjects.postpone("a");
        assert_eq!(subjects.waiting["a"].failures, 12);
        assert!(subjects.next_trial().is_some_and(|next| next <= BACKOFF.max));
    }

    #[test]
    fn messages_are_parked_once_a_right_has_been_missing_for_long() {
        let mut subjects = Subjects::default();
        subjects.deny("a");
        assert_eq!(subjects.parked(), [""; 0]);
        subjects.denied.insert("a".to_owned(), Instant::now() - GRANT_WAIT);
        subjects.deny("a");
        assert_eq!(subjects.parked(), ["a"]);
        subjects.granted("a");
        assert_eq!(subjects.parked(), [""; 0]);
    }
}
