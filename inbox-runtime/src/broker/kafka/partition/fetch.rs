//! Fetches a partition's records, and notices missing ones and topics that were recreated.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use rdkafka::{
    Message as _,
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{
    super::{
        partition_errors, record,
        slot::FetchedRecord,
        subscriptions::{Subscriptions, TopicSubscription},
    },
    Partition,
};
use crate::delivery::Delivery;

impl Partition {
    /// The next record, requeued or from the queue.
    pub(super) fn fetch(&mut self, subscriptions: &Subscriptions) -> Option<FetchedRecord> {
        // Cleared before the queue is polled, or a record that arrives in between would be missed.
        if !self.ready.swap(false, Ordering::AcqRel) {
            return None;
        }
        if let Some(record) = self.requeued.pop_front() {
            self.ready.store(true, Ordering::Release);
            return Some(record);
        }
        let subscription = &subscriptions[self.subscription];
        loop {
            match self.queue.poll(Duration::ZERO)? {
                Ok(record) => {
                    self.ready.store(true, Ordering::Release);
                    let (offset, delivery) = (record.offset(), record::delivery(&record, &subscriptions.prefix));
                    drop(record);
                    self.fetch_succeeded(subscription);
                    return Some(self.record_fetched(offset, delivery));
                }
                Err(KafkaError::PartitionEOF(_)) => self.fetch_succeeded(subscription),
                Err(error) => self.fetch_failed(&error, subscription),
            }
        }
    }

    fn fetch_succeeded(&mut self, subscription: &TopicSubscription) {
        self.fetch_failing = false;
        if !std::mem::replace(&mut self.has_fetched, true) {
            subscription.clear_blocked(&self.id.to_string());
        }
    }

    /// librdkafka retries by itself; health shows that the partition is blocked meanwhile.
    fn fetch_failed(&mut self, error: &KafkaError, subscription: &TopicSubscription) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) {
            // If the topic exists again, it is a new one.
            self.begin_incarnation();
        }
        self.has_fetched = false;
        self.fetch_failing = true;
        tracing::warn!(partition = %self.id, %error, "no records can be fetched from a partition");
        subscription.set_blocked(
            self.id.to_string(),
            partition_errors::fetch_failed(&self.id.topic, error),
        );
    }

    /// Notes that a record was fetched. Its offset shows whether others are missing, or the topic was recreated.
    pub(super) fn record_fetched(&mut self, offset: i64, delivery: Delivery) -> FetchedRecord {
        match self.next_offset {
            Some(expected) if offset < expected => self.begin_incarnation(),
            Some(expected) if offset > expected => self.gap = Some((expected, offset)),
            _ => {}
        }
        if self.next_offset.is_none() && self.progress.incarnation() > 0 {
            // Commits the new start in place of the old topic's offset.
            self.progress.skip_to(offset);
        }
        self.next_offset = Some(offset + 1);
        self.end = None;
        self.last_serial += 1;
        FetchedRecord {
            serial: self.last_serial,
            incarnation: self.progress.incarnation(),
            offset,
            delivery,
        }
    }

    /// The topic was recreated: the offsets of the old one mean nothing.
    pub(in super::super) fn begin_incarnation(&mut self) {
        self.progress.begin_incarnation();
        self.recreated_at = Some(Instant::now());
        self.has_fetched = false;
        self.next_offset = None;
        self.gap = None;
        self.end = None;
    }

    /// The topic got another id at `since`. Returns whether the partition must be read from its beginning: not if its
    /// records have shown that already.
    pub(in super::super) fn mark_recreated(&mut self, since: Instant) -> bool {
        if self.recreated_at.is_some_and(|recreated_at| recreated_at >= since) {
            return false;
        }
        self.begin_incarnation();
        // A late commit of the old topic's offset may have been applied to the new one.
        self.progress.skip_to(0);
        self.requeued.clear();
        true
    }

    /// The offset to seek to so that librdkafka reports when a failing fetch works again.
    pub(in super::super) fn refetch_offset(&self) -> Option<i64> {
        self.next_offset.filter(|_| self.fetch_failing && self.is_idle())
    }
}
