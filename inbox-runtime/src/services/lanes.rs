//! What one relay remembers of an outbox: from where on it looks into each lane, and which subjects the broker doesn't take now. It is a
//! hint only: what is forgotten is read from the beginning.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{backoff::Backoff, store::OutboxHeads};

/// How often every lane is looked at from its beginning, for messages that were committed later than others behind them.
const FULL_LOOK: Duration = Duration::from_secs(1);
/// Such looks take at most this part of the time.
const DUTY: u32 = 20;
/// How long a right may be missing before the messages that need it are parked.
const GRANT_WAIT: Duration = Duration::from_mins(5);
/// The wait before a subject that the broker didn't take is tried again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

/// The lanes of an outbox.
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    waiting: BTreeMap<String, Waiting>,
    /// Since when the right to publish to a subject is missing.
    denied: BTreeMap<String, Instant>,
    full_look: Instant,
    /// Whether the look that is under way is such a one.
    is_full: bool,
}

/// One lane, as one relay sees it.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) number: u16,
    /// Messages before that one are published, or of subjects that wait.
    from: i64,
    /// Where the batch begins that is due.
    pub(super) start: i64,
    /// How long it took to read the batch, if that began at the beginning of the lane.
    full_read: Option<Duration>,
}

/// A subject that the broker doesn't take now.
#[derive(Debug)]
struct Waiting {
    /// The first message of it that was not taken, which is tried again.
    trial: Trial,
    until: Instant,
    failures: u32,
    why: String,
    /// It is being tried.
    on_trial: bool,
}

/// A message by which a subject is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) subject: String,
    pub(super) lane: u16,
    pub(super) id: i64,
}

impl Lanes {
    pub(super) fn new(count: u16) -> Self {
        let lane = |number| Lane {
            number,
            from: i64::MIN,
            start: i64::MIN,
            full_read: None,
        };
        Self {
            lanes: (0..count).map(lane).collect(),
            waiting: BTreeMap::new(),
            denied: BTreeMap::new(),
            full_look: Instant::now(),
            is_full: false,
        }
    }

    /// Begins a look: from which message on each lane is of interest.
    pub(super) fn begin_look(&mut self) -> Vec<i64> {
        self.is_full = self.full_look <= Instant::now();
        let is_full = self.is_full;
        self.lanes
            .iter()
            .map(|lane| if is_full { i64::MIN } else { lane.from })
            .collect()
    }

    /// Whether the look that is under way begins at the beginning of each lane, and so sees messages that wait, too.
    pub(super) const fn sees_all(&self) -> bool {
        self.is_full
    }

    /// Ends a look, which has taken so long. Returns the lanes that have something.
    pub(super) fn end_look(&mut self, heads: &OutboxHeads, took: Duration) -> Vec<u16> {
        if self.is_full {
            self.full_look = Instant::now() + FULL_LOOK.max(took * DUTY);
        }
        let is_full = self.is_full;
        let mut ready = Vec::new();
        for head in &heads.lanes {
            let Some(lane) = self.lanes.get_mut(usize::from(head.lane)) else {
                continue;
            };
            lane.start = head.id;
            lane.full_read = is_full.then_some(Duration::ZERO);
            ready.push(head.lane);
        }
        ready
    }

    pub(super) fn get(&self, lane: u16) -> Option<Lane> {
        self.lanes.get(usize::from(lane)).cloned()
    }

    /// Takes back what was learned of a lane.
    pub(super) fn put(&mut self, lane: Lane) {
        if let Some(took) = lane.full_read {
            self.full_look = self.full_look.max(Instant::now() + took * DUTY);
        }
        if let Some(known) = self.lanes.get_mut(usize::from(lane.number)) {
            *known = lane;
        }
    }

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

    /// The broker doesn't take a subject now, of which that is a message: it is left out of all lanes until it has been tried.
    pub(super) fn wait(&mut self, trial: Trial, why: &str) {
        let now = Instant::now();
        let waiting = self.waiting.entry(trial.subject.clone()).or_insert_with(|| Waiting {
            trial: trial.clone(),
            until: now,
            failures: 0,
            why: String::new(),
            on_trial: true,
        });
        if std::mem::take(&mut waiting.on_trial) {
            waiting.trial = trial;
            waiting.failures += 1;
            waiting.until = now + BACKOFF.first.max(BACKOFF.delay(waiting.failures));
            why.clone_into(&mut waiting.why);
        }
    }

    /// The next subject whose turn it is to be tried.
    pub(super) fn begin_trial(&mut self) -> Option<Trial> {
        let now = Instant::now();
        let due = self
            .waiting
            .values_mut()
            .filter(|waiting| waiting.until <= now && !waiting.on_trial);
        let waiting = due.min_by_key(|waiting| waiting.until)?;
        waiting.on_trial = true;
        Some(waiting.trial.clone())
    }

    /// The trial of a subject could not be made: it waits as long again.
    pub(super) fn postpone(&mut self, subject: &str) {
        if let Some(waiting) = self.waiting.get_mut(subject) {
            waiting.on_trial = false;
            waiting.until = Instant::now() + BACKOFF.first.max(BACKOFF.delay(waiting.failures));
        }
    }

    /// The broker takes that subject again: every lane is read from its beginning.
    pub(super) fn resume(&mut self, subject: &str) {
        if self.waiting.remove(subject).is_some() {
            for lane in &mut self.lanes {
                lane.from = i64::MIN;
            }
        }
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

impl Lane {
    /// The lane from that message on.
    pub(super) fn at(mut self, id: i64) -> Self {
        self.start = id;
        self.full_read = None;
        self
    }

    /// The batch was read, which has taken so long.
    pub(super) fn read(&mut self, took: Duration) {
        if let Some(full) = &mut self.full_read {
            *full = took;
        }
    }

    /// The batch is done up to that message. `exhausted`: nothing was left behind it.
    pub(super) fn done(&mut self, last: i64, exhausted: bool) {
        self.from = if exhausted { self.from.max(last + 1) } else { last + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::LaneHead;

    fn heads(id: i64) -> OutboxHeads {
        let head = LaneHead {
            lane: 0,
            id,
            age: Duration::ZERO,
        };
        OutboxHeads {
            lanes: vec![head],
            due: false,
        }
    }

    /// A look that finds that message first.
    fn look(lanes: &mut Lanes, id: i64) -> Lane {
        lanes.begin_look();
        assert_eq!(lanes.end_look(&heads(id), Duration::ZERO), [0]);
        lanes.get(0).expect("a lane")
    }

    fn trial(subject: &str, id: i64) -> Trial {
        Trial {
            subject: subject.to_owned(),
            lane: 0,
            id,
        }
    }

    #[test]
    fn what_was_published_is_not_looked_at_again_but_for_late_commits() {
        let mut lanes = Lanes::new(1);
        let mut lane = look(&mut lanes, 5);
        assert_eq!(lane.start, 5);
        lane.done(9, true);
        lanes.put(lane);
        assert_eq!(lanes.begin_look(), [10]);
        assert!(!lanes.sees_all());
        lanes.full_look = Instant::now();
        assert_eq!(lanes.begin_look(), [i64::MIN], "once a second");
        assert!(lanes.sees_all());
        lanes.end_look(&heads(7), Duration::ZERO);
        let mut late = lanes.get(0).expect("a lane");
        assert_eq!(late.start, 7);
        late.done(7, true);
        lanes.put(late);
        assert_eq!(lanes.begin_look(), [10]);
    }

    #[test]
    fn a_subject_that_waits_is_left_out_until_one_message_of_it_was_taken() {
        let mut lanes = Lanes::new(2);
        let mut lane = look(&mut lanes, 1);
        lanes.wait(trial("a", 2), "no stream");
        lanes.wait(trial("a", 4), "no stream");
        lane.done(6, true);
        lanes.put(lane);
        assert_eq!(lanes.begin_look()[0], 7);
        assert_eq!(
            (lanes.waiting()["a"].as_str(), lanes.skipped()),
            ("no stream", vec!["a".to_owned()])
        );
        assert_eq!(lanes.begin_trial(), None, "not yet");
        lanes.waiting.get_mut("a").expect("it waits").until = Instant::now();
        assert_eq!(lanes.begin_trial(), Some(trial("a", 2)), "the first of them");
        assert_eq!((lanes.begin_trial(), lanes.next_trial()), (None, None), "one at a time");
        assert_eq!(lanes.skipped(), ["a"], "of the batches, until it is taken");
        lanes.resume("a");
        assert_eq!((lanes.skipped().len(), lanes.begin_look()), (0, vec![i64::MIN; 2]));
    }

    #[test]
    fn a_trial_that_fails_waits_longer_and_one_that_could_not_be_made_as_long() {
        let mut lanes = Lanes::new(1);
        for failures in 1..=12 {
            lanes.wait(trial("a", 1), "no stream");
            assert_eq!(lanes.waiting["a"].failures, failures);
            lanes.waiting.get_mut("a").expect("it waits").until = Instant::now();
            assert_eq!(lanes.begin_trial(), Some(trial("a", 1)));
        }
        lanes.postpone("a");
        assert_eq!(lanes.waiting["a"].failures, 12);
        assert!(lanes.next_trial().is_some_and(|next| next <= BACKOFF.max));
    }

    #[test]
    fn messages_are_parked_once_a_right_has_been_missing_for_long() {
        let mut lanes = Lanes::new(1);
        lanes.deny("a");
        assert_eq!(lanes.parked(), [""; 0]);
        lanes.denied.insert("a".to_owned(), Instant::now() - GRANT_WAIT);
        lanes.deny("a");
        assert_eq!(lanes.parked(), ["a"]);
        lanes.granted("a");
        assert_eq!(lanes.parked(), [""; 0]);
    }

    #[test]
    fn a_batch_that_was_cut_off_goes_on_behind_its_last_message() {
        let mut lanes = Lanes::new(1);
        let mut lane = look(&mut lanes, 1);
        lane.done(900, true);
        lanes.put(lane);
        lanes.full_look = Instant::now();
        let mut late = look(&mut lanes, 10);
        late.done(521, false);
        lanes.put(late);
        assert_eq!(lanes.begin_look(), [522]);
    }
}
