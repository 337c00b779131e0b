//! One assigned partition: the record being handled, the ones before it in the queue, and the progress.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rdkafka::consumer::base_consumer::PartitionQueue;

use super::{
    client::{Client, ConsumerCallbacks},
    progress::CommitProgress,
    slot::{FetchedRecord, Slot},
    subscriptions::{Subscriptions, TopicSubscription},
    topic_partition::TopicPartition,
};
use crate::delivery::Delivery;

mod fetch;

/// A partition that is assigned to this member.
pub(super) struct Partition {
    pub(super) id: TopicPartition,
    /// Tells this assignment from other ones of the same partition.
    pub(super) epoch: u64,
    /// The index of its subscription in the group.
    pub(super) subscription: usize,
    /// It is being revoked: no more records are delivered.
    pub(super) revoked: bool,
    pub(super) progress: CommitProgress,
    queue: PartitionQueue<ConsumerCallbacks>,
    /// See [`TopicSubscription::max_uncommitted`].
    max_uncommitted: usize,
    /// Whether the queue or `requeued` may have a record. Outside our lock: librdkafka sets it with the queue's lock held.
    ready: Arc<AtomicBool>,
    /// Records to deliver before those in the queue: polled before the partition had a queue of its own, or prefetched
    /// and released.
    requeued: VecDeque<FetchedRecord>,
    slot: Slot,
    last_serial: u64,
    /// The offset after the last fetched record, or the group's start; `None` if unknown.
    next_offset: Option<i64>,
    /// When the topic was last found to be recreated.
    recreated_at: Option<Instant>,
    /// A range of offsets without records, the second one exclusive, that is not yet checked against the oldest record.
    gap: Option<(i64, i64)>,
    /// The partition's end, if everything before it is processed.
    end: Option<i64>,
    /// Whether the next record may be a redelivery: Kafka doesn't count deliveries, so the first one counts as one.
    redelivered: bool,
    /// How many records in a row counted as redeliveries and turned out to be processed.
    redeliveries: usize,
    /// Whether a record or the partition's end was fetched.
    has_fetched: bool,
    /// Whether fetching fails. librdkafka reports no end of partition after that until it fetches anew.
    fetch_failing: bool,
}

impl Partition {
    /// Takes over a partition's queue. `committed` is the group's committed offset. `None` if librdkafka doesn't know
    /// the partition.
    pub(super) fn new(
        client: &Arc<Client>,
        id: TopicPartition,
        epoch: u64,
        (index, subscription): (usize, &TopicSubscription),
        committed: Option<i64>,
    ) -> Option<Self> {
        let mut queue = client.split_partition_queue(&id.topic, id.partition)?;
        let ready = Arc::new(AtomicBool::new(true));
        let (is_ready, wake) = (ready.clone(), subscription.wake.clone());
        queue.set_nonempty_callback(move || {
            is_ready.store(true, Ordering::Release);
            wake.notify_one();
        });
        Some(Self {
            id,
            epoch,
            subscription: index,
            revoked: false,
            progress: committed.map(CommitProgress::committed_at).unwrap_or_default(),
            queue,
            ready,
            requeued: VecDeque::new(),
            slot: Slot::Free,
            last_serial: 0,
            next_offset: committed,
            recreated_at: None,
            gap: None,
            end: None,
            max_uncommitted: subscription.max_uncommitted,
            redelivered: true,
            redeliveries: 0,
            has_fetched: false,
            fetch_failing: false,
        })
    }

    /// Sets the offset at which the group starts.
    pub(super) fn start_at(&mut self, offset: i64) {
        self.progress.skip_to(offset);
        self.next_offset = Some(offset);
    }

    /// Adds a record that was polled before the partition had a queue of its own.
    pub(super) fn requeue_polled(&mut self, offset: i64, delivery: Delivery) {
        let record = self.record_fetched(offset, delivery);
        self.requeued.push_back(record);
        self.ready.store(true, Ordering::Release);
    }

    pub(super) fn has_fetched(&self) -> bool {
        self.has_fetched
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.slot, Slot::InFlight { .. })
    }

    /// Whether a record is being handled or backs off.
    pub(super) fn is_occupied(&self) -> bool {
        !matches!(self.slot, Slot::Free)
    }

    /// When the record that backs off is redelivered.
    pub(super) fn redelivery_at(&self) -> Option<Instant> {
        match &self.slot {
            Slot::Backoff { until, .. } if !self.revoked => Some(*until),
            _ => None,
        }
    }

    /// Delivers the next record, if there is one and the slot is free.
    pub(super) fn deliver(&mut self, now: Instant, subscriptions: &Subscriptions) -> Option<FetchedRecord> {
        if self.revoked || self.is_at_uncommitted_limit() {
            return None;
        }
        let mut record = match std::mem::replace(&mut self.slot, Slot::Free) {
            Slot::Backoff { record, until } if until <= now => {
                if !self.fetch_failing {
                    subscriptions[self.subscription].clear_blocked(&self.id.to_string());
                }
                self.redelivered = true;
                record
            }
            Slot::Free => self.fetch(subscriptions)?,
            slot => {
                self.slot = slot;
                return None;
            }
        };
        record.delivery.redelivered = std::mem::take(&mut self.redelivered);
        self.slot = Slot::InFlight {
            record: record.clone(),
            prefetched: None,
        };
        Some(record)
    }

    /// Prefetches the record after the one in flight, for the same worker.
    pub(super) fn prefetch(&mut self, serial: u64, subscriptions: &Subscriptions) -> Option<FetchedRecord> {
        // After a possible redelivery, whether the next record may be one too depends on how this one is settled.
        let can_prefetch = matches!(&self.slot, Slot::InFlight { record, prefetched: None }
            if record.serial == serial && !record.delivery.redelivered);
        if self.revoked || self.is_at_uncommitted_limit() || !can_prefetch {
            return None;
        }
        let next = self.fetch(subscriptions)?;
        if let Slot::InFlight { prefetched, .. } = &mut self.slot {
            *prefetched = Some(next.clone());
        }
        Some(next)
    }

    /// Whether so many records are uncommitted that a commit should not wait for its interval.
    pub(super) fn should_commit_now(&self) -> bool {
        self.progress.unconfirmed() >= self.max_uncommitted / 2
    }

    /// Whether a crash now would redeliver as many records as the next process takes for redeliveries.
    fn is_at_uncommitted_limit(&self) -> bool {
        self.progress.unconfirmed() >= self.max_uncommitted
    }

    /// Whether everything that was fetched is processed.
    fn is_idle(&self) -> bool {
        !self.revoked && self.requeued.is_empty() && matches!(self.slot, Slot::Free)
    }

    /// librdkafka has seen the partition's end at that offset, and its queue is empty.
    pub(super) fn record_end(&mut self, offset: i64) {
        let is_ahead = self.next_offset.is_none_or(|next| next <= offset);
        self.end = (is_ahead && self.has_fetched && self.is_idle()).then_some(offset);
    }

    /// Compares the progress with the offsets of the oldest record and the end, as the broker reports them. If
    /// everything is processed, skips to the end: records of transactions may come last, which are no messages. Returns
    /// how many records were removed before they were fetched.
    pub(super) fn check_bounds(&mut self, first: i64, end: i64) -> i64 {
        let at_end = self.end == Some(end) && self.is_idle();
        let gap = match self.gap.take() {
            None if at_end => self.next_offset.map(|next| (next, end)),
            gap => gap,
        };
        if at_end {
            self.progress.skip_to(end);
            self.next_offset = Some(end);
        }
        gap.map_or(0, |(from, to)| first.min(to).saturating_sub(from).max(0))
    }

    /// Whether that record is in flight.
    pub(super) fn has_in_flight(&self, serial: u64) -> bool {
        matches!(&self.slot, Slot::InFlight { record, .. } if record.serial == serial)
    }

    /// Whether that record is in flight or prefetched.
    pub(super) fn holds(&self, serial: u64) -> bool {
        match &self.slot {
            Slot::InFlight { record, prefetched } => {
                record.serial == serial || prefetched.as_ref().is_some_and(|next| next.serial == serial)
            }
            _ => false,
        }
    }

    /// The record in flight had been processed before. If it counted as a possible redelivery, so does the next one.
    pub(super) fn mark_duplicate(&mut self, serial: u64) {
        let Slot::InFlight {
            record,
            prefetched: None,
        } = &self.slot
        else {
            return;
        };
        if record.serial == serial && record.delivery.redelivered && self.redeliveries < self.max_uncommitted {
            self.redeliveries += 1;
            self.redelivered = true;
        }
    }

    /// The record in flight is acknowledged; the prefetched one takes its slot.
    pub(super) fn ack(&mut self) {
        let slot = std::mem::replace(&mut self.slot, Slot::Free);
        let Slot::InFlight { record, prefetched } = slot else {
            self.slot = slot;
            return;
        };
        if let Some(next) = prefetched {
            self.slot = Slot::InFlight {
                record: next,
                prefetched: None,
            };
        }
        if record.incarnation == self.progress.incarnation() {
            self.progress.record_ack(record.offset);
        }
    }

    /// The record in flight is to be committed before it counts as acknowledged. Returns whether that is possible: not
    /// if the topic was recreated meanwhile.
    pub(super) fn begin_confirm(&mut self) -> bool {
        match &self.slot {
            Slot::InFlight { record, .. } if record.incarnation == self.progress.incarnation() => {
                self.progress.begin_confirm(record.offset);
                true
            }
            _ => false,
        }
    }

    /// The record in flight backs off; the prefetched one is requeued.
    pub(super) fn back_off(&mut self, until: Instant) {
        self.slot = match std::mem::replace(&mut self.slot, Slot::Free) {
            Slot::InFlight { record, prefetched } => {
                self.requeue(prefetched);
                Slot::Backoff { record, until }
            }
            slot => slot,
        };
    }

    /// Releases the prefetched record, if it is that one. Returns whether it was.
    pub(super) fn release_prefetched(&mut self, serial: u64) -> bool {
        let Slot::InFlight { prefetched, .. } = &mut self.slot else {
            return false;
        };
        let released = prefetched.take_if(|next| next.serial == serial);
        let was_released = released.is_some();
        self.requeue(released);
        was_released
    }

    fn requeue(&mut self, record: Option<FetchedRecord>) {
        if let Some(record) = record {
            self.requeued.push_front(record);
            self.ready.store(true, Ordering::Release);
        }
    }
}
