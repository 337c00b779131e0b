//! The consumer group of a program: its handlers' lines, the partitions that are ours, and what is asked of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::consumer::BaseConsumer;
use tokio::sync::{Notify, oneshot, watch};

use super::{
    Shared,
    anew::Anew,
    consumer::Context,
    hand::{Part, Record},
    partition::Partition,
    topics,
};
use crate::{
    broker::{BrokerError, SourceStatus, Subscription},
    handler::StartPosition,
};

/// The consumer of a group.
pub(super) type Client = BaseConsumer<Context>;

/// How long closing waits for what was acknowledged to be committed, and for the group to be left.
const REST: Duration = Duration::from_millis(1500);

/// One handler's part of a group.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) subject: String,
    pub(super) start: StartPosition,
    /// The database has records of the group.
    pub(super) known: bool,
    pub(super) ack_wait: Duration,
    pub(super) status: SourceStatus,
    /// How many acknowledgements came for partitions that were taken away before they were confirmed.
    lost: AtomicU64,
    /// When its lag was last known.
    lag: Mutex<Option<Instant>>,
    /// Wakes its pull.
    pub(super) wake: Arc<Notify>,
}

impl Line {
    pub(super) fn new(subscription: &Subscription) -> Self {
        Self {
            subject: subscription.subject.clone(),
            start: subscription.start,
            known: subscription.known,
            ack_wait: subscription.ack_wait,
            status: SourceStatus::default(),
            lost: AtomicU64::new(0),
            lag: Mutex::default(),
            wake: Arc::new(Notify::new()),
        }
    }

    /// A partition is ours no more, so that nothing of it waits here.
    pub(super) fn forget(&self, part: &Part) {
        let name = part.name();
        self.status.clear_blocked(&name);
        self.status.clear_blocked(&offset_of(&name));
    }

    /// How many messages the group has not acknowledged, or that this isn't known.
    pub(super) fn set_lag(&self, lag: Option<u64>) {
        *self.lag.lock().unwrap_or_else(PoisonError::into_inner) = lag.map(|_| Instant::now());
        self.status.set_lag(lag);
    }

    /// A lag that was known longer ago than that is none.
    fn forget_lag(&self, fresh: Duration) {
        let mut lag = self.lag.lock().unwrap_or_else(PoisonError::into_inner);
        if lag.take_if(|known| known.elapsed() > fresh).is_some() {
            self.status.set_lag(None);
        }
    }
}

/// What the offset of a partition is called in a status.
pub(super) fn offset_of(partition: &str) -> String {
    format!("the offset of {partition}")
}

/// A group, as its sources, its leases and its two threads share it.
pub(super) struct Group {
    /// Its `group.id`.
    pub(super) id: String,
    pub(super) prefix: String,
    pub(super) lines: Vec<Line>,
    pub(super) shared: Arc<Shared>,
    state: Mutex<State>,
    /// Topics that were made anew, and are to be read from their beginning.
    anew: Mutex<Vec<Anew>>,
    /// Wakes the thread that commits.
    pub(super) work: Condvar,
    /// Wakes the thread that polls while it waits for deliveries to be settled and offsets to be committed.
    pub(super) settled: Condvar,
    /// The same for tasks.
    told: Notify,
    /// Whether it has been joined once.
    pub(super) joined: watch::Sender<bool>,
    /// Whether it has been left for good.
    pub(super) left: watch::Sender<bool>,
}

/// What changes.
#[derive(Default)]
pub(super) struct State {
    pub(super) client: Option<Arc<Client>>,
    pub(super) partitions: BTreeMap<Part, Partition>,
    /// The topics that the group has read, or begun to.
    pub(super) begun: BTreeSet<Arc<str>>,
    /// Offsets of topics that are gone which may have been committed too late. Where the group has one of them on a topic of the same
    /// name, it is not the new topic's.
    pub(super) stale: BTreeMap<Part, i64>,
    /// When topics and offsets are looked at again; at once where that isn't said.
    pub(super) look: Option<Instant>,
    /// A topic was missing at the last look.
    pub(super) missing: bool,
    /// A broker answers.
    pub(super) answers: bool,
    epoch: u64,
    /// Who waits for an offset to be confirmed.
    pub(super) waiters: Vec<Waiter>,
    /// Offsets are to be committed now, not when it is time.
    pub(super) urgent: bool,
    /// The thread that commits has nothing to do, and must be woken.
    pub(super) resting: bool,
    /// A commit is under way.
    pub(super) committing: bool,
    /// The client can't be used any more, and why.
    pub(super) fatal: Option<String>,
    closed_lines: usize,
    /// Every source is closed: nothing is handed out any more.
    pub(super) closing: bool,
    /// The thread that commits is to end.
    pub(super) over: bool,
}

/// Who waits for an offset to be confirmed.
pub(super) struct Waiter {
    pub(super) part: Part,
    pub(super) epoch: u64,
    pub(super) incarnation: u32,
    pub(super) offset: i64,
    pub(super) tell: oneshot::Sender<Result<(), BrokerError>>,
}

impl State {
    /// Whether something was acknowledged that is not committed.
    pub(super) fn is_dirty(&self) -> bool {
        self.partitions
            .values()
            .any(|partition| partition.progress.due().is_some())
    }

    pub(super) fn any_out(&self) -> bool {
        self.partitions.values().any(Partition::is_out)
    }

    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// The partition, if it is still the one of that assignment.
    pub(super) fn current(&mut self, part: &Part, epoch: u64) -> Option<&mut Partition> {
        self.partitions
            .get_mut(part)
            .filter(|partition| partition.epoch == epoch)
    }

    /// The same, if it was not made anew since.
    pub(super) fn of_incarnation(&mut self, part: &Part, epoch: u64, incarnation: u32) -> Option<&mut Partition> {
        self.current(part, epoch)
            .filter(|partition| partition.progress.incarnation() == incarnation)
    }

    /// Whoever waits for the offset of a partition that is gone, or was made anew, hears that by its sender's end.
    pub(super) fn forget_waiters(&mut self) {
        let waiters = std::mem::take(&mut self.waiters);
        self.waiters = waiters
            .into_iter()
            .filter(|one| self.of_incarnation(&one.part, one.epoch, one.incarnation).is_some())
            .collect();
    }
}

impl Group {
    pub(super) fn new(id: String, prefix: String, lines: Vec<Line>, shared: Arc<Shared>) -> Self {
        Self {
            id,
            prefix,
            lines,
            shared,
            state: Mutex::default(),
            anew: Mutex::default(),
            work: Condvar::new(),
            settled: Condvar::new(),
            told: Notify::new(),
            joined: watch::Sender::new(false),
            left: watch::Sender::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_anew(&self) -> MutexGuard<'_, Vec<Anew>> {
        self.anew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was known of the lag longer ago than that is not known any more.
    pub(super) fn forget_lag(&self, fresh: Duration) {
        for line in &self.lines {
            line.forget_lag(fresh);
        }
    }

    /// Whose a topic is.
    pub(super) fn line_of(&self, topic: &str) -> Option<usize> {
        self.lines
            .iter()
            .position(|line| topics::takes(&self.prefix, &line.subject, topic))
    }

    pub(super) fn wake_all(&self) {
        for line in &self.lines {
            line.wake.notify_one();
        }
    }

    /// Tells everybody who waits for deliveries to be settled, or offsets to be committed.
    pub(super) fn tell(&self) {
        self.settled.notify_all();
        self.told.notify_waiters();
    }

    /// A line's status says how many acknowledgements the broker hasn't confirmed.
    pub(super) fn count_unconfirmed(&self, state: &State, line: usize) {
        let ours = state.partitions.values().filter(|partition| partition.line == line);
        let waiting: usize = ours.map(|partition| partition.progress.unconfirmed()).sum();
        let line = &self.lines[line];
        let lost = line.lost.load(Ordering::Relaxed);
        line.status.set_unconfirmed(lost + waiting as u64);
    }

    /// That many acknowledgements of a line won't be confirmed: their partition is somebody else's.
    pub(super) fn lose(&self, state: &State, line: usize, acknowledgements: usize) {
        self.lines[line]
            .lost
            .fetch_add(acknowledgements as u64, Ordering::Relaxed);
        self.count_unconfirmed(state, line);
    }

    /// Every line's status says that a part of it waits.
    pub(super) fn wait(&self, part: &str, why: &str) {
        for line in &self.lines {
            line.status.set_blocked(part, why);
        }
    }

    pub(super) fn go_on(&self, part: &str) {
        for line in &self.lines {
            line.status.clear_blocked(part);
        }
    }

    /// Hands out at most `max` records of a line, partition by partition, from the one behind `after`.
    pub(super) fn take(&self, line: usize, max: usize, after: &mut Option<Part>) -> Result<Vec<Taken>, BrokerError> {
        let now = self.shared.clock.now();
        let status = &self.lines[line].status;
        let mut state = self.lock();
        if let Some(fatal) = &state.fatal {
            return Err(BrokerError::Ended(fatal.clone()));
        }
        let mut taken = Vec::new();
        let ours = state
            .partitions
            .iter_mut()
            .filter(|(_, partition)| partition.line == line);
        // Those behind the last one come first, so that none starves.
        let mut ours: Vec<_> = ours.collect();
        let first = ours.partition_point(|(part, _)| after.as_ref().is_some_and(|after| *part <= after));
        ours.rotate_left(first);
        for (part, partition) in ours {
            if taken.len() == max {
                break;
            }
            if let Some(record) = partition.take(part, now, &self.prefix, status) {
                *after = Some(part.clone());
                taken.push(Taken {
                    part: part.clone(),
                    epoch: partition.epoch,
                    record,
                });
            }
        }
        Ok(taken)
    }

    /// When the first record of a line that waits is due, by the clock of waits.
    pub(super) fn next_due(&self, line: usize) -> Option<Instant> {
        let state = self.lock();
        let ours = state.partitions.values().filter(|partition| partition.line == line);
        ours.filter_map(Partition::due).min()
    }

    /// How many records are out or wait.
    pub(super) fn in_hand(&self) -> usize {
        let state = self.lock();
        state
            .partitions
            .values()
            .filter(|partition| partition.is_in_hand())
            .count()
    }

    /// Whether a line's partitions are known and have been looked at, so that finding nothing means that there is nothing.
    pub(super) fn has_looked(&self, line: usize) -> bool {
        let state = self.lock();
        *self.joined.borrow()
            && state
                .partitions
                .values()
                .filter(|partition| partition.line == line)
                .all(Partition::looked_at)
    }

    /// A source is closed. With the last one the group is left, once nothing of it is out.
    pub(super) fn close_line(&self) {
        let mut state = self.lock();
        state.closed_lines += 1;
        if state.closed_lines == self.lines.len() {
            state.closing = true;
        }
        state.urgent = true;
        drop(state);
        self.work.notify_all();
        self.tell();
    }

    /// While the group is being closed: waits until what was acknowledged is committed, and with the last delivery until
    /// the group is left, so that another member has its partitions at once. Not for long: the broker may be gone.
    pub(super) async fn rest(&self) {
        let rested = async {
            loop {
                let mut told = std::pin::pin!(self.told.notified());
                told.as_mut().enable();
                let (closing, dirty, out) = {
                    let state = self.lock();
                    (state.closing, state.is_dirty(), state.any_out())
                };
                match (closing, out) {
                    (true, false) => {
                        let _ = self.left.subscribe().wait_for(|left| *left).await;
                        return;
                    }
                    _ if !dirty => return,
                    _ => told.await,
                }
            }
        };
        let _ = tokio::time::timeout(REST, rested).await;
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A record that was handed out.
pub(super) struct Taken {
    pub(super) part: Part,
    pub(super) epoch: u64,
    pub(super) record: Record,
}
