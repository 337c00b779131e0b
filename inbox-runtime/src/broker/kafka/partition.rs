//! One partition that is ours: the record in hand, what comes behind it, and how far it is done.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{
    Message as _,
    consumer::base_consumer::PartitionQueue,
    error::{KafkaError, RDKafkaErrorCode},
};
use tokio::sync::Notify;

use super::{
    consumer::Context,
    group::Client,
    hand::{Hand, Part, Record},
    problems,
    progress::Progress,
    record,
};
use crate::{broker::SourceStatus, delivery::Delivery};

/// How many records of a partition, at most, are done and not committed: so many may be repeated by a crash, and so many are
/// taken for repeated ones, in a row, while those before them are done. A group that begins anew at an old offset isn't slow all
/// the way then.
const REREAD: u32 = 2000;

/// A partition that was assigned to us.
pub(super) struct Partition {
    /// Tells this assignment from an earlier or later one of the same partition.
    pub(super) epoch: u64,
    /// Whose it is, of the group's lines.
    pub(super) line: usize,
    /// It is being taken away: nothing more is handed out.
    pub(super) revoked: bool,
    pub(super) progress: Progress,
    queue: PartitionQueue<Context>,
    /// Whether there may be something in the queue. Set by librdkafka with its queue locked, so it must not need our lock.
    ready: Arc<AtomicBool>,
    /// What is not in the queue and comes before it: what came before the queue was ours, and what was given back.
    strays: VecDeque<Record>,
    hand: Hand,
    serials: u64,
    /// The offset behind the last record that was read, or at first where the group begins, as far as that is known.
    read_to: Option<i64>,
    /// When the partition was last seen to begin anew.
    anew: Option<Instant>,
    /// Offsets without a record, from the first to the one before the last: nobody has looked yet whether there was one.
    gap: Option<(i64, i64)>,
    /// The end of the partition that librdkafka has seen, with nothing before it that isn't done.
    end: Option<i64>,
    /// The next record may have been handled before: nobody counts deliveries, so the first one counts as such.
    redelivered: bool,
    /// How many records in a row may have been handled before, and were done in the end.
    reread: u32,
    /// Its end was seen, or a record.
    looked_at: bool,
    /// Records can't be fetched, and no end will be told when they can again.
    broken: bool,
}

impl Partition {
    /// Takes over a partition's queue. `committed` is the group's place, if the broker has one. `None` if librdkafka doesn't
    /// know the partition.
    pub(super) fn new(
        client: &Arc<Client>,
        part: &Part,
        line: usize,
        epoch: u64,
        committed: Option<i64>,
        wake: Arc<Notify>,
    ) -> Option<Self> {
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
            progress: committed.map(Progress::known).unwrap_or_default(),
            queue,
            ready,
            strays: VecDeque::new(),
            hand: Hand::Empty,
            serials: 0,
            read_to: committed,
            anew: None,
            gap: None,
            end: None,
            redelivered: true,
            reread: 0,
            looked_at: false,
            broken: false,
        })
    }

    /// The group begins at this offset.
    pub(super) fn begin_at(&mut self, offset: i64) {
        self.progress.pass(offset);
        self.read_to = Some(offset);
    }

    /// A record that came before the queue was ours.
    pub(super) fn stray(&mut self, offset: i64, delivery: Delivery) {
        let record = self.read(offset, delivery);
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
        if self.revoked || self.is_far_ahead() {
            return None;
        }
        let mut record = match std::mem::replace(&mut self.hand, Hand::Empty) {
            Hand::Back { record, until } if until <= now => {
                if !self.broken {
                    status.clear_blocked(&part.name());
                }
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

    /// Takes the record behind the one that is out, for the same hands.
    pub(super) fn take_behind(
        &mut self,
        serial: u64,
        part: &Part,
        prefix: &str,
        status: &SourceStatus,
    ) -> Option<Record> {
        // Whether the next one may have been handled before depends on what becomes of this one.
        let free = |hand: &Hand| {
            matches!(hand, Hand::Out { record, behind: None }
                if record.serial == serial && !record.delivery.redelivered)
        };
        if self.revoked || self.is_far_ahead() || !free(&self.hand) {
            return None;
        }
        let next = self.next(part, prefix, status)?;
        if let Hand::Out { behind, .. } = &mut self.hand {
            *behind = Some(next.clone());
        }
        Some(next)
    }

    /// So much is done and not committed that a commit should not wait for its time.
    pub(super) fn is_ahead(&self) -> bool {
        self.progress.unconfirmed() >= REREAD as usize / 2
    }

    /// So much is done and not committed that a process that dies now would repeat more than the next one takes for repeated.
    fn is_far_ahead(&self) -> bool {
        self.progress.unconfirmed() >= REREAD as usize
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
                    let (offset, delivery) = (record.offset(), record::delivery(&record, prefix));
                    drop(record);
                    self.look(part, status);
                    return Some(self.read(offset, delivery));
                }
                Err(KafkaError::PartitionEOF(_)) => self.look(part, status),
                Err(error) => self.fetch_failed(part, &error, status),
            }
        }
    }

    /// librdkafka tries again by itself. Until a record comes the partition stands still, which must show.
    fn fetch_failed(&mut self, part: &Part, error: &KafkaError, status: &SourceStatus) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) {
            // If it is there again, it is another one.
            self.begin_anew();
        }
        self.looked_at = false;
        self.broken = true;
        tracing::warn!(partition = part.name(), %error, "no records can be fetched from a partition");
        status.set_blocked(part.name(), problems::fetch(&part.topic, error));
    }

    /// Notes that a record was read: where it stands tells whether others are missing, or the partition was made anew.
    fn read(&mut self, offset: i64, delivery: Delivery) -> Record {
        match self.read_to {
            Some(expected) if offset < expected => self.begin_anew(),
            Some(expected) if offset > expected => self.gap = Some((expected, offset)),
            _ => {}
        }
        if self.read_to.is_none() && self.progress.incarnation() > 0 {
            // Where it begins is to be committed, in place of what the old one had.
            self.progress.pass(offset);
        }
        self.read_to = Some(offset + 1);
        self.end = None;
        self.serials += 1;
        Record {
            serial: self.serials,
            incarnation: self.progress.incarnation(),
            offset,
            delivery,
        }
    }

    /// The topic was made anew: what was read of the old one says nothing about it.
    pub(super) fn begin_anew(&mut self) {
        self.progress.begin_anew();
        self.anew = Some(Instant::now());
        self.looked_at = false;
        self.read_to = None;
        self.gap = None;
        self.end = None;
    }

    /// The topic has another id since then. Returns whether the partition must be read from its beginning, which nobody has
    /// noticed by its records yet.
    pub(super) fn made_anew(&mut self, since: Instant) -> bool {
        if self.anew.is_some_and(|anew| anew >= since) {
            return false;
        }
        self.begin_anew();
        // What was committed of the old one may have come too late, and be taken for the new one's.
        self.progress.pass(0);
        self.strays.clear();
        true
    }

    /// It was looked at: whatever was wrong with it has passed.
    fn look(&mut self, part: &Part, status: &SourceStatus) {
        self.broken = false;
        if !std::mem::replace(&mut self.looked_at, true) {
            status.clear_blocked(&part.name());
        }
    }

    /// From where it must be fetched again, so that librdkafka tells when that works.
    pub(super) fn broken_at(&self) -> Option<i64> {
        self.read_to.filter(|_| self.broken && self.is_idle())
    }

    /// Nothing is in hand, and everything that was read is done.
    fn is_idle(&self) -> bool {
        !self.revoked && self.strays.is_empty() && matches!(self.hand, Hand::Empty)
    }

    /// librdkafka has seen the partition's end at that offset, and has nothing before it in its queue.
    pub(super) fn saw_end(&mut self, offset: i64) {
        let behind = self.read_to.is_none_or(|read_to| read_to <= offset);
        self.end = (behind && self.looked_at && self.is_idle()).then_some(offset);
    }

    /// The partition ends there, as the broker says, and its oldest record has that offset. Behind the last record there may be
    /// some of transactions, which are no messages: they are done too. Returns how many records were removed before they were
    /// read.
    pub(super) fn rest(&mut self, first: i64, end: i64) -> i64 {
        let at_end = self.end == Some(end) && self.is_idle();
        let gap = match self.gap.take() {
            None if at_end => self.read_to.map(|read_to| (read_to, end)),
            gap => gap,
        };
        if at_end {
            self.progress.pass(end);
            self.read_to = Some(end);
        }
        gap.map_or(0, |(from, to)| first.min(to).saturating_sub(from).max(0))
    }

    /// Whether that record is out.
    pub(super) fn has_out(&self, serial: u64) -> bool {
        matches!(&self.hand, Hand::Out { record, .. } if record.serial == serial)
    }

    /// Whether that record is out, or the next one behind the one that is.
    pub(super) fn holds(&self, serial: u64) -> bool {
        match &self.hand {
            Hand::Out { record, behind } => {
                record.serial == serial || behind.as_ref().is_some_and(|behind| behind.serial == serial)
            }
            _ => false,
        }
    }

    /// The record that is out was done when it was read, or may have been. Where it was taken for one that may have been read
    /// before, the next one may have been as well.
    pub(super) fn was_done(&mut self, serial: u64) {
        let Hand::Out { record, behind: None } = &self.hand else {
            return;
        };
        if record.serial == serial && record.delivery.redelivered && self.reread < REREAD {
            self.reread += 1;
            self.redelivered = true;
        }
    }

    /// The record that is out is done, and the one behind it, if that is in hand, comes in its place.
    pub(super) fn done(&mut self) {
        let hand = std::mem::replace(&mut self.hand, Hand::Empty);
        let Hand::Out { record, behind } = hand else {
            self.hand = hand;
            return;
        };
        if let Some(record) = behind {
            self.hand = Hand::Out { record, behind: None };
        }
        if record.incarnation == self.progress.incarnation() {
            self.progress.finish(record.offset);
        }
    }

    /// The record that is out is to be committed before it counts as done. Returns whether it can be: the partition may have been
    /// made anew meanwhile.
    pub(super) fn confirm(&mut self) -> bool {
        match &self.hand {
            Hand::Out { record, .. } if record.incarnation == self.progress.incarnation() => {
                self.progress.confirm(record.offset);
                true
            }
            _ => false,
        }
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

    /// The record behind the one that is out is given back before it had its turn. Returns whether it is that one.
    pub(super) fn back_behind(&mut self, serial: u64) -> bool {
        let Hand::Out { behind, .. } = &mut self.hand else {
            return false;
        };
        let behind = behind.take_if(|behind| behind.serial == serial);
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
