//! One partition that is ours: the record in hand, what comes behind it, and how far it is done.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{Message as _, consumer::base_consumer::PartitionQueue, error::KafkaError};
use tokio::sync::Notify;

use super::{consumer::Context, errors, group::Client, record};
use crate::{broker::SourceStatus, delivery::Delivery};

/// How many records, at most, are taken for ones that were read before because those before them were done: more than a
/// process reads between two commits, so that a group that begins anew at an old offset isn't slow all the way.
const REREAD: u32 = 10_000;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
}

impl Part {
    pub(super) fn new(topic: &str, number: i32) -> Self {
        Self {
            topic: topic.into(),
            number,
        }
    }

    /// Its name in texts.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.topic, self.number)
    }
}

/// A record with its offset.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) offset: i64,
    pub(super) delivery: Delivery,
}

/// What is out of a partition: one record, so that each follows the one before it.
#[derive(Debug)]
enum Hand {
    /// The next record may be handed out.
    Empty,
    /// One is being handled. It stays here, in case it is given back. Whoever handles it may have the next one too, to go on
    /// with when this one is done.
    Out { record: Record, behind: Option<Record> },
    /// One was given back and waits.
    Back { record: Record, until: Instant },
}

/// How far a partition is done: offsets of the next record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// By what was acknowledged.
    done: Option<i64>,
    /// By an acknowledgement that must be confirmed before it counts.
    confirming: Option<i64>,
    /// By what the broker has confirmed.
    committed: Option<i64>,
}

impl Progress {
    /// What is to be committed, if that is more than what is.
    pub(super) fn due(&self) -> Option<i64> {
        self.done
            .max(self.confirming)
            .filter(|&offset| Some(offset) > self.committed)
    }

    /// How far it is done.
    pub(super) fn done(&self) -> Option<i64> {
        self.done
    }

    /// Whether the broker has confirmed that the record with that offset is done.
    pub(super) fn has(&self, offset: i64) -> bool {
        self.committed.is_some_and(|committed| committed > offset)
    }

    /// The broker has confirmed that.
    pub(super) fn commit(&mut self, offset: i64) {
        self.committed = self.committed.max(Some(offset));
    }
}

/// A partition that was assigned to us.
pub(super) struct Partition {
    /// Tells this assignment from an earlier or later one of the same partition.
    pub(super) epoch: u64,
    /// Whose it is, of the group's lines.
    pub(super) line: usize,
    /// It is being taken away: nothing more is handed out.
    pub(super) revoked: bool,
    pub(super) progress: Progress,
    /// The offsets that were acknowledged and that the broker hasn't confirmed, in order.
    unconfirmed: VecDeque<i64>,
    queue: PartitionQueue<Context>,
    /// Whether there may be something in the queue. Set by librdkafka with its queue locked, so it must not need our lock.
    ready: Arc<AtomicBool>,
    /// What is not in the queue and comes before it: what came before the queue was ours, and what was given back.
    strays: VecDeque<Record>,
    hand: Hand,
    /// The next record may have been handled before: nobody counts deliveries, so the first one counts as such.
    redelivered: bool,
    /// How many records in a row were done when they were read.
    known_done: u32,
    /// Its end was seen, or a record.
    looked_at: bool,
}

impl Partition {
    /// Takes over a partition's queue. `None` if librdkafka doesn't know the partition.
    pub(super) fn new(client: &Arc<Client>, part: &Part, line: usize, epoch: u64, wake: Arc<Notify>) -> Option<Self> {
        let mut queue = client.split_partition_queue(&part.topic, part.number)?;
        let ready = Arc::new(AtomicBool::new(true));
        let filled = ready.clone();
        queue.set_nonempty_callback(move || {
            filled.store(true, Ordering::Release);
            wake.notify_one();
        });
        Some(Self {
            epoch,
            line,
            revoked: false,
            progress: Progress::default(),
            unconfirmed: VecDeque::new(),
            queue,
            ready,
            strays: VecDeque::new(),
            hand: Hand::Empty,
            redelivered: true,
            known_done: 0,
            looked_at: false,
        })
    }

    /// The group begins at this offset.
    pub(super) fn begin_at(&mut self, offset: i64) {
        self.progress.done = Some(offset);
    }

    /// A record that came before the queue was ours.
    pub(super) fn stray(&mut self, record: Record) {
        self.strays.push_back(record);
        self.ready.store(true, Ordering::Release);
    }

    pub(super) fn looked_at(&self) -> bool {
        self.looked_at
    }

    pub(super) fn is_out(&self) -> bool {
        matches!(self.hand, Hand::Out { .. })
    }

    pub(super) fn is_in_hand(&self) -> bool {
        !matches!(self.hand, Hand::Empty)
    }

    /// When the record that waits is due.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.hand {
            Hand::Back { until, .. } if !self.revoked => Some(*until),
            _ => None,
        }
    }

    /// Takes the next record in hand, if there is one and it may be.
    pub(super) fn take(&mut self, part: &Part, now: Instant, prefix: &str, status: &SourceStatus) -> Option<Record> {
        if self.revoked {
            return None;
        }
        let mut record = match std::mem::replace(&mut self.hand, Hand::Empty) {
            Hand::Back { record, until } if until <= now => {
                status.go_on(&part.name());
                self.redelivered = true;
                record
            }
            Hand::Empty => self.next(part, prefix, status)?,
            hand => {
                self.hand = hand;
                return None;
            }
        };
        record.delivery.redelivered = std::mem::take(&mut self.redelivered);
        self.hand = Hand::Out {
            record: record.clone(),
            behind: None,
        };
        Some(record)
    }

    /// Takes the record behind the one that is out with that offset, for the same hands.
    pub(super) fn take_behind(
        &mut self,
        offset: i64,
        part: &Part,
        prefix: &str,
        status: &SourceStatus,
    ) -> Option<Record> {
        if self.revoked || !matches!(&self.hand, Hand::Out { record, behind: None } if record.offset == offset) {
            return None;
        }
        let next = self.next(part, prefix, status)?;
        if let Hand::Out { behind, .. } = &mut self.hand {
            *behind = Some(next.clone());
        }
        Some(next)
    }

    /// The next record of the queue.
    fn next(&mut self, part: &Part, prefix: &str, status: &SourceStatus) -> Option<Record> {
        // Before the look, or what happens between the look and this would be missed.
        if !self.ready.swap(false, Ordering::AcqRel) {
            return None;
        }
        if let Some(record) = self.strays.pop_front() {
            self.ready.store(true, Ordering::Release);
            return Some(record);
        }
        loop {
            match self.queue.poll(Duration::ZERO)? {
                Ok(record) => {
                    self.ready.store(true, Ordering::Release);
                    let record = Record {
                        offset: record.offset(),
                        delivery: record::delivery(&record, prefix),
                    };
                    self.look(part, status);
                    return Some(record);
                }
                Err(KafkaError::PartitionEOF(_)) => self.look(part, status),
                Err(error) => {
                    // librdkafka tries again by itself. Until a record comes the partition stands still, which must show.
                    self.looked_at = false;
                    tracing::warn!(partition = part.name(), %error, "no records can be fetched from a partition");
                    status.wait(part.name(), errors::with_advice(&error));
                }
            }
        }
    }

    /// It was looked at: whatever was wrong with it has passed.
    fn look(&mut self, part: &Part, status: &SourceStatus) {
        if !std::mem::replace(&mut self.looked_at, true) {
            status.go_on(&part.name());
        }
    }

    /// Whether the record with that offset is out.
    pub(super) fn has_out(&self, offset: i64) -> bool {
        matches!(&self.hand, Hand::Out { record, .. } if record.offset == offset)
    }

    /// The record that is out was done when it was read. Where it was taken for one that may have been read before, the next one
    /// may have been as well.
    pub(super) fn was_done(&mut self, offset: i64) {
        let Hand::Out { record, behind: None } = &self.hand else {
            return;
        };
        if record.offset == offset && record.delivery.redelivered && self.known_done < REREAD {
            self.known_done += 1;
            self.redelivered = true;
        }
    }

    /// The record that is out is done, and the one behind it, if that is in hand, comes in its place.
    pub(super) fn done(&mut self, offset: i64) {
        self.hand = match std::mem::replace(&mut self.hand, Hand::Empty) {
            Hand::Out {
                behind: Some(record), ..
            } => Hand::Out { record, behind: None },
            _ => Hand::Empty,
        };
        self.progress.confirming = None;
        self.progress.done = self.progress.done.max(Some(offset + 1));
        if !self.progress.has(offset) {
            self.unconfirmed.push_back(offset);
        }
    }

    /// The broker has confirmed that everything before that offset is done.
    pub(super) fn commit(&mut self, offset: i64) {
        self.progress.commit(offset);
        while self.unconfirmed.pop_front_if(|first| *first < offset).is_some() {}
    }

    /// How many acknowledgements the broker hasn't confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The record that is out is to be committed before it counts as done.
    pub(super) fn confirm(&mut self, offset: i64) {
        self.progress.confirming = Some(offset + 1);
    }

    /// That didn't come off.
    pub(super) fn not_confirmed(&mut self) {
        self.progress.confirming = None;
    }

    /// The record that is out waits for its next turn, and what is behind it too.
    pub(super) fn back(&mut self, until: Instant) {
        self.hand = match std::mem::replace(&mut self.hand, Hand::Empty) {
            Hand::Out { record, behind } => {
                self.put_back(behind);
                Hand::Back { record, until }
            }
            hand => hand,
        };
    }

    /// The record behind the one that is out is given back before it had its turn. Returns whether it has that offset.
    pub(super) fn back_behind(&mut self, offset: i64) -> bool {
        let Hand::Out { behind, .. } = &mut self.hand else {
            return false;
        };
        let behind = behind.take_if(|behind| behind.offset == offset);
        let is_it = behind.is_some();
        self.put_back(behind);
        is_it
    }

    fn put_back(&mut self, behind: Option<Record>) {
        if let Some(behind) = behind {
            self.strays.push_front(behind);
            self.ready.store(true, Ordering::Release);
        }
    }
}
