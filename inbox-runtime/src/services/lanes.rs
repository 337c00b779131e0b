//! What one relay remembers of each lane of an outbox: from where on it looks, and which subjects the broker doesn't take now. It is
//! a hint only: a lane that is forgotten is read from its beginning.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{backoff::Backoff, store::OutboxHeads};

/// How often every lane is looked at from its beginning, for messages that were committed later than others behind them.
const FULL_LOOK: Duration = Duration::from_secs(1);
/// Such looks take at most this part of the time.
const DUTY: u32 = 20;
/// The wait before a subject that the broker didn't take is tried again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(30),
};

/// The lanes of an outbox.
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    full_look: Instant,
    /// Whether the look that is under way is such a one.
    is_full: bool,
}

/// One lane, as one relay sees it.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) number: u16,
    /// Messages before that one are published, or of subjects that wait.
    from: i64,
    /// Where the batch begins that is due.
    pub(super) start: i64,
    waiting: BTreeMap<String, Waiting>,
    /// How long it took to read the batch, if that began at the beginning of the lane.
    full_read: Option<Duration>,
}

/// A subject that the broker doesn't take now.
#[derive(Clone)]
struct Waiting {
    /// The first message of it that waits.
    first: i64,
    since: Instant,
    until: Instant,
    failures: u32,
    why: String,
    /// It is tried in the batch that is due.
    on_trial: bool,
}

impl Lanes {
    pub(super) fn new(count: u16) -> Self {
        let lane = |number| Lane {
            number,
            from: i64::MIN,
            start: i64::MIN,
            waiting: BTreeMap::new(),
            full_read: None,
        };
        Self {
            lanes: (0..count).map(lane).collect(),
            full_look: Instant::now(),
            is_full: false,
        }
    }

    /// Begins a look: from which message on each lane is of interest.
    pub(super) fn begin_look(&mut self) -> Vec<i64> {
        let now = Instant::now();
        self.is_full = self.full_look <= now;
        let is_full = self.is_full;
        self.lanes
            .iter_mut()
            .map(|lane| if is_full { i64::MIN } else { lane.first_of_interest(now) })
            .collect()
    }

    /// Ends a look, which has taken so long. Returns the lanes that have something.
    pub(super) fn end_look(&mut self, heads: &OutboxHeads, took: Duration) -> Vec<u16> {
        let now = Instant::now();
        if self.is_full {
            self.full_look = now + FULL_LOOK.max(took * DUTY);
        }
        let is_full = self.is_full;
        let mut ready = Vec::new();
        for head in &heads.lanes {
            let Some(lane) = self.lanes.get_mut(usize::from(head.lane)) else {
                continue;
            };
            let from = lane.first_of_interest(now);
            lane.start = if is_full { head.id } else { from.max(head.id) };
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

    /// How long it is until a subject that waits is tried again.
    pub(super) fn next_trial(&self) -> Option<Duration> {
        let waiting = self.lanes.iter().flat_map(|lane| lane.waiting.values());
        let next = waiting.map(|waiting| waiting.until).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The subjects that wait, each with the reason.
    pub(super) fn waiting(&self) -> BTreeMap<String, String> {
        let all = self.lanes.iter().flat_map(|lane| &lane.waiting);
        all.map(|(subject, waiting)| (subject.clone(), waiting.why.clone()))
            .collect()
    }
}

impl Lane {
    /// From where on it may have something that can be published, with the subjects whose turn it is to be tried.
    fn first_of_interest(&mut self, now: Instant) -> i64 {
        let mut from = self.from;
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.until <= now) {
            waiting.on_trial = true;
            from = from.min(waiting.first);
        }
        from
    }

    /// The subjects that are left out of the batch.
    pub(super) fn skipped(&self) -> Vec<String> {
        let waiting = self.waiting.iter().filter(|(_, waiting)| !waiting.on_trial);
        waiting.map(|(subject, _)| subject.clone()).collect()
    }

    /// The batch was read, which has taken so long.
    pub(super) fn read(&mut self, took: Duration) {
        if let Some(full) = &mut self.full_read {
            *full = took;
        }
    }

    /// The broker doesn't take that subject now, of which this is a message.
    pub(super) fn wait(&mut self, subject: &str, id: i64, why: &str) {
        let waiting = self.waiting.entry(subject.to_owned()).or_insert_with(|| Waiting {
            first: id,
            since: Instant::now(),
            until: Instant::now(),
            failures: 0,
            why: String::new(),
            on_trial: true,
        });
        if std::mem::take(&mut waiting.on_trial) {
            // The first of this batch.
            waiting.first = id;
            waiting.failures += 1;
            waiting.until = Instant::now() + BACKOFF.first.max(BACKOFF.delay(waiting.failures));
            why.clone_into(&mut waiting.why);
        }
    }

    /// How long the subject has waited.
    pub(super) fn waited(&self, subject: &str) -> Duration {
        self.waiting
            .get(subject)
            .map(|waiting| waiting.since.elapsed())
            .unwrap_or_default()
    }

    /// The batch is done up to that message. `exhausted`: nothing was left behind it.
    pub(super) fn done(&mut self, last: Option<i64>, exhausted: bool) {
        // What was tried and doesn't wait again has been taken.
        self.waiting.retain(|_, waiting| !waiting.on_trial);
        let Some(last) = last else { return };
        self.from = if exhausted { self.from.max(last + 1) } else { last + 1 };
        self.start = self.from;
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

    #[test]
    fn what_was_published_is_not_looked_at_again_but_for_late_commits() {
        let mut lanes = Lanes::new(1);
        let mut lane = look(&mut lanes, 5);
        assert_eq!(lane.start, 5);
        lane.done(Some(9), true);
        lanes.put(lane);
        assert_eq!(lanes.begin_look(), [10]);
        lanes.full_look = Instant::now();
        assert_eq!(lanes.begin_look(), [i64::MIN], "once a second");
        lanes.end_look(&heads(7), Duration::ZERO);
        let mut late = lanes.get(0).expect("a lane");
        assert_eq!(late.start, 7);
        late.done(Some(7), true);
        lanes.put(late);
        assert_eq!(lanes.begin_look(), [10]);
    }

    #[test]
    fn a_subject_that_waits_is_left_out_and_tried_again_from_its_first_message() {
        let mut lanes = Lanes::new(1);
        let mut lane = look(&mut lanes, 1);
        lane.wait("a", 2, "no stream");
        lane.wait("a", 4, "no stream");
        lane.done(Some(6), true);
        lanes.put(lane);
        assert_eq!(lanes.begin_look(), [7]);
        assert_eq!(lanes.waiting()["a"], "no stream");
        let mut lane = look(&mut lanes, 8);
        assert_eq!(lane.skipped(), ["a"]);
        lane.done(Some(8), true);
        lanes.put(lane);
        lanes.lanes[0].waiting.get_mut("a").expect("it waits").until = Instant::now();
        assert_eq!(lanes.begin_look(), [2]);
        let mut lane = look(&mut lanes, 2);
        assert_eq!((lane.start, lane.skipped().len()), (2, 0));
        lane.done(Some(4), true);
        lanes.put(lane);
        assert_eq!(lanes.waiting().len(), 0);
        assert_eq!(lanes.begin_look(), [9]);
    }

    #[test]
    fn a_trial_that_fails_waits_longer() {
        let mut lane = Lanes::new(1).get(0).expect("a lane");
        for failures in 1..=12 {
            lane.wait("a", 1, "no stream");
            assert_eq!(lane.waiting["a"].failures, failures);
            lane.waiting.get_mut("a").expect("it waits").until = Instant::now();
            lane.first_of_interest(Instant::now());
        }
        lane.wait("a", 1, "no stream");
        assert!(lane.waiting["a"].until <= Instant::now() + BACKOFF.max);
    }

    #[test]
    fn a_batch_that_was_cut_off_goes_on_behind_its_last_message() {
        let mut lanes = Lanes::new(1);
        let mut lane = look(&mut lanes, 1);
        lane.done(Some(900), true);
        lanes.put(lane);
        lanes.full_look = Instant::now();
        let mut late = look(&mut lanes, 10);
        late.done(Some(521), false);
        lanes.put(late);
        assert_eq!(lanes.begin_look(), [522]);
    }
}
