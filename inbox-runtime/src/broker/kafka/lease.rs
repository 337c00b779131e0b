//! Settling deliveries: an ack advances the partition's offset, a nak makes the partition back off.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot::{self, Receiver};

use super::{
    group::{CommitWaiter, Group, GroupState, PulledRecord},
    record::position,
    topic_partition::TopicPartition,
};
use crate::{
    broker::{BrokerError, Lease},
    delivery::Delivery,
};

/// "Forever" for a delay that the clock can't hold.
const LONGEST_DELAY: Duration = Duration::from_secs(1 << 30);

/// Settles one delivery from Kafka.
///
/// If its partition was revoked meanwhile, another member redelivers the message, and there is nothing to settle.
#[derive(Debug)]
pub struct KafkaLease {
    group: Arc<Group>,
    subscription: usize,
    partition: TopicPartition,
    epoch: u64,
    serial: u64,
    offset: i64,
    settled: AtomicBool,
}

impl KafkaLease {
    /// The delivery of a record, with its lease.
    pub(super) fn deliver(group: Arc<Group>, subscription: usize, pulled: PulledRecord) -> (Delivery, Self) {
        let lease = Self {
            group,
            subscription,
            partition: pulled.partition,
            epoch: pulled.epoch,
            serial: pulled.record.serial,
            offset: pulled.record.offset,
            settled: AtomicBool::new(false),
        };
        (pulled.record.delivery, lease)
    }

    fn lost(&self) -> BrokerError {
        BrokerError::LeaseLost {
            position: position(&self.partition.topic, self.partition.partition, self.offset),
        }
    }

    /// Makes the partition back off for `delay`, or releases the record if it was only prefetched. Returns whether the
    /// partition is still ours.
    fn release(&self, delay: Duration, why: &str) -> bool {
        let now = self.group.clock.now();
        let until = now.checked_add(delay).unwrap_or(now + LONGEST_DELAY);
        let mut state = self.group.lock();
        let closing = state.closing;
        let Some(partition) = state.assigned(&self.partition, self.epoch) else {
            return false;
        };
        if partition.release_prefetched(self.serial) {
            return true;
        }
        if !partition.has_in_flight(self.serial) {
            return false;
        }
        partition.back_off(until);
        if !delay.is_zero() && !closing {
            let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            let time = humantime::format_duration(Duration::from_millis(millis));
            let text = format!("offset {} {why} and is redelivered in {time}", self.offset);
            let status = &self.group.subscriptions[self.subscription].status;
            status.back_off(self.partition.to_string(), text);
        }
        drop(state);
        self.notify();
        true
    }

    /// Requests a commit at once, and returns the receiver of its result for that offset or a later one.
    fn request_commit(
        &self,
        state: &mut GroupState,
        incarnation: u32,
        offset: i64,
    ) -> Receiver<Result<(), BrokerError>> {
        let (sender, receiver) = oneshot::channel();
        state.commit_now = true;
        state.waiters.push(CommitWaiter {
            partition: self.partition.clone(),
            epoch: self.epoch,
            incarnation,
            offset,
            result: sender,
        });
        self.group.commit_wanted.notify_one();
        receiver
    }

    /// Requests the commit of this record before it counts as acknowledged. `None` if it is committed already, as when
    /// an earlier call was dropped half-way.
    fn begin_confirm(&self) -> Result<Option<Receiver<Result<(), BrokerError>>>, BrokerError> {
        let mut state = self.group.lock();
        let partition = state
            .assigned(&self.partition, self.epoch)
            .filter(|partition| partition.has_in_flight(self.serial) && !partition.revoked)
            .ok_or_else(|| self.lost())?;
        // If the topic was recreated, nothing can be committed for its old record.
        if !partition.begin_confirm() {
            return Err(self.lost());
        }
        if partition.progress.is_committed(self.offset) {
            partition.ack();
            return Ok(None);
        }
        let incarnation = partition.progress.incarnation();
        Ok(Some(self.request_commit(&mut state, incarnation, self.offset + 1)))
    }

    /// Records the result of that commit in the partition. If the partition was revoked since a successful one, no
    /// other member gets the record.
    fn end_confirm(&self, result: &Result<(), BrokerError>) {
        let mut state = self.group.lock();
        let Some(partition) = state.assigned(&self.partition, self.epoch) else {
            return;
        };
        match result {
            Ok(()) if partition.has_in_flight(self.serial) => partition.ack(),
            Ok(()) => {}
            Err(_) => partition.progress.cancel_confirm(),
        }
    }

    /// Wakes the source and those who wait for deliveries to be settled.
    fn notify(&self) {
        self.group.subscriptions[self.subscription].wake.notify_one();
        self.group.notify_settled();
    }
}

impl Lease for KafkaLease {
    /// Advances the partition's offset, which is committed soon after; while the group is closing, before this returns.
    async fn ack(&self) -> Result<(), BrokerError> {
        self.settled.store(true, Ordering::Relaxed);
        let (closing, wake_commit, is_free) = {
            let mut state = self.group.lock();
            let closing = state.closing;
            let partition = state
                .assigned(&self.partition, self.epoch)
                .filter(|partition| partition.has_in_flight(self.serial));
            let Some(partition) = partition else {
                tracing::debug!(
                    partition = %self.partition,
                    offset = self.offset,
                    "acknowledged after its partition was revoked"
                );
                self.group.abandon_acks(&state, self.subscription, 1);
                return Ok(());
            };
            partition.ack();
            let is_free = !partition.is_in_flight();
            let commit_now = closing || partition.should_commit_now();
            self.group.update_uncommitted(&state, self.subscription);
            state.commit_now |= commit_now;
            // A commit thread that isn't idle looks at its next interval.
            (closing, std::mem::take(&mut state.commit_idle) || commit_now, is_free)
        };
        if wake_commit {
            self.group.commit_wanted.notify_one();
        }
        if is_free {
            self.group.subscriptions[self.subscription].wake.notify_one();
        }
        self.group.notify_settled();
        if closing {
            self.group.wait_committed().await;
        }
        Ok(())
    }

    /// Processed records after the committed offset are redelivered, up to the first one that is not processed: that
    /// one may have crashed the process, so each record after a duplicate counts as a possible redelivery.
    async fn ack_again(&self) -> Result<(), BrokerError> {
        if let Some(partition) = self.group.lock().assigned(&self.partition, self.epoch) {
            partition.mark_duplicate(self.serial);
        }
        self.ack().await
    }

    /// Commits the offset, and returns when the broker has confirmed it.
    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        if let Some(committed) = self.begin_confirm()? {
            let result = committed.await.unwrap_or_else(|_| Err(self.lost()));
            self.end_confirm(&result);
            result?;
        }
        self.settled.store(true, Ordering::Relaxed);
        self.notify();
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.settled.store(true, Ordering::Relaxed);
        if self.release(delay, "was nakked") && self.group.lock().closing {
            self.group.wait_committed().await;
        }
        Ok(())
    }

    /// Does nothing: the poll thread keeps the group's membership, however long a handler takes.
    async fn progress(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Whether the partition is still assigned to this member, and is not being revoked.
    fn is_ours(&self) -> bool {
        let mut state = self.group.lock();
        let partition = state.assigned(&self.partition, self.epoch);
        partition.is_some_and(|partition| !partition.revoked && partition.holds(self.serial))
    }

    /// Commits the partition's acknowledged offset.
    async fn confirm_earlier(&self) -> Result<(), BrokerError> {
        let committed = {
            let mut state = self.group.lock();
            let partition = state.assigned(&self.partition, self.epoch);
            let partition = partition.ok_or_else(|| self.lost())?;
            let Some(offset) = partition.progress.uncommitted() else {
                return Ok(());
            };
            let incarnation = partition.progress.incarnation();
            self.request_commit(&mut state, incarnation, offset)
        };
        committed.await.unwrap_or_else(|_| Err(self.lost()))
    }

    /// Prefetches the next record of the partition.
    fn next_in_partition(&self) -> Option<(Delivery, Self)> {
        let mut state = self.group.lock();
        if state.closing {
            return None;
        }
        let partition = state.assigned(&self.partition, self.epoch)?;
        let record = partition.prefetch(self.serial, &self.group.subscriptions)?;
        let pulled = PulledRecord {
            partition: self.partition.clone(),
            epoch: self.epoch,
            record,
        };
        Some(Self::deliver(self.group.clone(), self.subscription, pulled))
    }
}

impl Drop for KafkaLease {
    /// Unsettled, the message is redelivered after the ack-wait.
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            let ack_wait = self.group.subscriptions[self.subscription].ack_wait;
            self.release(ack_wait, "was not settled");
        }
    }
}
