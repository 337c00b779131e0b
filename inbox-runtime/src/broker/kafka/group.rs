//! The state of one consumer group, shared by its sources, leases and threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};

use super::{
    backoff_clock::BackoffClock, client::Client, partition::Partition, slot::FetchedRecord,
    subscriptions::Subscriptions, topic_partition::TopicPartition,
};
use crate::broker::BrokerError;

/// How long closing waits for commits, and for the group to be left.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(1500);

/// A consumer group.
pub(super) struct Group {
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) clock: Arc<BackoffClock>,
    state: Mutex<GroupState>,
    /// Recreated topics that the poll thread has not handled yet.
    recreated: Mutex<Vec<RecreatedTopic>>,
    /// Wakes the commit thread.
    pub(super) commit_wanted: Condvar,
    /// Wakes the poll thread while it waits for deliveries to be settled or offsets to be committed.
    pub(super) settled: Condvar,
    /// The same for tasks.
    settled_async: Notify,
    /// Whether the group has been joined once.
    pub(super) joined: watch::Sender<bool>,
    /// Whether the group has been left for good.
    pub(super) left: watch::Sender<bool>,
}

/// What changes while a group is consumed.
#[derive(Default)]
pub(super) struct GroupState {
    /// `None` before the consumer is created, and when the group is being left.
    pub(super) client: Option<Arc<Client>>,
    /// The partitions that are assigned to this member.
    pub(super) partitions: BTreeMap<TopicPartition, Partition>,
    /// Topics of which this program has had partitions.
    pub(super) known_topics: BTreeSet<Arc<str>>,
    /// Offsets of deleted topics whose commit may come too late. If the group has one of them on a recreated topic, it
    /// isn't the new topic's.
    pub(super) stale_offsets: BTreeMap<TopicPartition, i64>,
    /// When topics and offsets are polled next; `None` is at once.
    pub(super) next_metadata_poll: Option<Instant>,
    /// A topic was missing at the last poll.
    pub(super) topic_missing: bool,
    pub(super) brokers_answer: bool,
    last_epoch: u64,
    pub(super) waiters: Vec<CommitWaiter>,
    /// Commit at once, not at the next interval.
    pub(super) commit_now: bool,
    /// The commit thread has nothing to do and must be woken.
    pub(super) commit_idle: bool,
    /// A commit request is running.
    pub(super) committing: bool,
    /// Why the client can't be used any more.
    pub(super) fatal: Option<String>,
    closed_sources: usize,
    /// All sources are closed: no more records are delivered.
    pub(super) closing: bool,
    /// The commit thread must end.
    pub(super) shutdown: bool,
}

/// A caller that waits for an offset to be committed.
pub(super) struct CommitWaiter {
    pub(super) partition: TopicPartition,
    pub(super) epoch: u64,
    pub(super) incarnation: u32,
    pub(super) offset: i64,
    pub(super) result: oneshot::Sender<Result<(), BrokerError>>,
}

/// A topic that got another id.
pub(super) struct RecreatedTopic {
    pub(super) topic: String,
    pub(super) since: Instant,
}

/// A record that a source has pulled.
pub(super) struct PulledRecord {
    pub(super) partition: TopicPartition,
    /// The assignment of the partition.
    pub(super) epoch: u64,
    pub(super) record: FetchedRecord,
}

impl GroupState {
    /// Whether an acknowledged offset is not committed.
    pub(super) fn has_uncommitted(&self) -> bool {
        self.partitions
            .values()
            .any(|partition| partition.progress.uncommitted().is_some())
    }

    pub(super) fn any_in_flight(&self) -> bool {
        self.partitions.values().any(Partition::is_in_flight)
    }

    pub(super) fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }

    /// The partition, if it still has that assignment.
    pub(super) fn assigned(&mut self, partition: &TopicPartition, epoch: u64) -> Option<&mut Partition> {
        self.partitions
            .get_mut(partition)
            .filter(|partition| partition.epoch == epoch)
    }

    /// The same, if its topic was not recreated since.
    pub(super) fn of_incarnation(
        &mut self,
        partition: &TopicPartition,
        epoch: u64,
        incarnation: u32,
    ) -> Option<&mut Partition> {
        self.assigned(partition, epoch)
            .filter(|partition| partition.progress.incarnation() == incarnation)
    }

    /// Drops those who wait for a partition that was revoked or recreated; their receivers end.
    pub(super) fn drop_stale_waiters(&mut self) {
        let waiters = std::mem::take(&mut self.waiters);
        self.waiters = waiters
            .into_iter()
            .filter(|waiter| {
                self.of_incarnation(&waiter.partition, waiter.epoch, waiter.incarnation)
                    .is_some()
            })
            .collect();
    }
}

impl Group {
    pub(super) fn new(subscriptions: Subscriptions, clock: Arc<BackoffClock>) -> Self {
        Self {
            subscriptions: Arc::new(subscriptions),
            clock,
            state: Mutex::default(),
            recreated: Mutex::default(),
            commit_wanted: Condvar::new(),
            settled: Condvar::new(),
            settled_async: Notify::new(),
            joined: watch::Sender::new(false),
            left: watch::Sender::new(false),
        }
    }

    /// Kafka's `group.id`.
    pub(super) fn id(&self) -> &str {
        &self.subscriptions.group_id
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock()
    }

    /// Wakes everybody who waits for deliveries to be settled or offsets to be committed.
    pub(super) fn notify_settled(&self) {
        self.settled.notify_all();
        self.settled_async.notify_waiters();
    }

    /// Updates the number of uncommitted acknowledgements in a subscription's status.
    pub(super) fn update_uncommitted(&self, state: &GroupState, subscription: usize) {
        let partitions = state.partitions.values();
        let partitions = partitions.filter(|partition| partition.subscription == subscription);
        let uncommitted = partitions.map(|partition| partition.progress.unconfirmed()).sum();
        self.subscriptions[subscription].set_uncommitted(uncommitted);
    }

    /// Counts acknowledgements that will never be committed: their partition has another owner.
    pub(super) fn abandon_acks(&self, state: &GroupState, subscription: usize, acknowledgements: usize) {
        self.subscriptions[subscription].abandon_acks(acknowledgements);
        self.update_uncommitted(state, subscription);
    }

    /// Delivers at most `max` records of a subscription, one of each partition, starting after the partition `last`.
    pub(super) fn pull(
        &self,
        subscription: usize,
        max: usize,
        last: &mut Option<TopicPartition>,
    ) -> Result<Vec<PulledRecord>, BrokerError> {
        let now = self.clock.now();
        let mut state = self.lock();
        if let Some(fatal) = &state.fatal {
            return Err(BrokerError::Ended(fatal.clone()));
        }
        let mut pulled = Vec::new();
        let partitions = state
            .partitions
            .iter_mut()
            .filter(|(_, partition)| partition.subscription == subscription);
        // Round robin, so that none starves.
        let mut partitions: Vec<_> = partitions.collect();
        let first = partitions.partition_point(|(id, _)| last.as_ref().is_some_and(|last| *id <= last));
        partitions.rotate_left(first);
        for (id, partition) in partitions {
            if pulled.len() == max {
                break;
            }
            if let Some(record) = partition.deliver(now, &self.subscriptions) {
                *last = Some(id.clone());
                pulled.push(PulledRecord {
                    partition: id.clone(),
                    epoch: partition.epoch,
                    record,
                });
            }
        }
        Ok(pulled)
    }

    /// When the first record of a subscription that backs off is redelivered, by the back-off clock.
    pub(super) fn next_redelivery(&self, subscription: usize) -> Option<Instant> {
        let state = self.lock();
        let partitions = state.partitions.values();
        let partitions = partitions.filter(|partition| partition.subscription == subscription);
        partitions.filter_map(Partition::redelivery_at).min()
    }

    /// How many records are in flight or back off.
    pub(super) fn unsettled(&self) -> usize {
        let state = self.lock();
        let partitions = state.partitions.values();
        partitions.filter(|partition| partition.is_occupied()).count()
    }

    /// Whether all partitions of a subscription have been fetched from, so that an empty pull means that there is
    /// nothing.
    pub(super) fn has_fetched(&self, subscription: usize) -> bool {
        let state = self.lock();
        let mut partitions = state.partitions.values();
        *self.joined.borrow()
            && partitions.all(|partition| partition.subscription != subscription || partition.has_fetched())
    }

    /// A source is closed. After the last one the group is left as soon as nothing is in flight.
    pub(super) fn close_source(&self) {
        let mut state = self.lock();
        state.closed_sources += 1;
        if state.closed_sources == self.subscriptions.len() {
            state.closing = true;
        }
        state.commit_now = true;
        drop(state);
        self.commit_wanted.notify_all();
        self.notify_settled();
    }

    /// Waits until the acknowledged offsets are committed; while the group is closing and nothing is in flight, until
    /// it is left, so that another member gets its partitions at once. At most 1.5 s, as the brokers may be
    /// unreachable.
    pub(super) async fn wait_committed(&self) {
        let committed = async {
            loop {
                let mut settled = std::pin::pin!(self.settled_async.notified());
                settled.as_mut().enable();
                let (closing, uncommitted, in_flight) = {
                    let state = self.lock();
                    (state.closing, state.has_uncommitted(), state.any_in_flight())
                };
                match (closing, in_flight) {
                    (true, false) => {
                        let _ = self.left.subscribe().wait_for(|left| *left).await;
                        return;
                    }
                    _ if !uncommitted => return,
                    _ => settled.await,
                }
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, committed).await;
    }

    /// A topic no longer exists. Its uncommitted offsets can't be committed any more; if a commit of one is running,
    /// librdkafka retries it, and it may be applied to a recreated topic.
    pub(super) fn mark_topic_deleted(&self, topic: &str) {
        let mut state = self.lock();
        let GroupState {
            partitions,
            stale_offsets,
            ..
        } = &mut *state;
        for (id, partition) in partitions.iter_mut().filter(|(id, _)| *id.topic == *topic) {
            if let Some(offset) = partition.progress.uncommitted() {
                stale_offsets.insert(id.clone(), offset);
            }
            partition.begin_incarnation();
        }
    }

    /// A topic got another id.
    pub(super) fn add_recreated(&self, topic: &str) {
        let topic = RecreatedTopic {
            topic: topic.to_owned(),
            since: Instant::now(),
        };
        self.lock_recreated().push(topic);
    }

    /// The recreated topics that were not handled yet.
    pub(super) fn take_recreated(&self) -> Vec<RecreatedTopic> {
        std::mem::take(&mut *self.lock_recreated())
    }

    fn lock_recreated(&self) -> MutexGuard<'_, Vec<RecreatedTopic>> {
        self.recreated.lock()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("id", &self.id()).finish_non_exhaustive()
    }
}
