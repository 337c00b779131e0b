//! Settling deliveries: an acknowledgement moves a partition's offset, and what is given back keeps the partition waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot::{self, Receiver};

use super::{
    group::{Group, State, Taken, Waiter},
    hand::Part,
    record::position,
};
use crate::{
    broker::{BrokerError, Lease},
    delivery::Delivery,
};

/// Settles one delivery from Kafka.
///
/// A partition that was taken away meanwhile is somebody else's: then there is nothing to settle.
#[derive(Debug)]
pub struct KafkaLease {
    group: Arc<Group>,
    line: usize,
    part: Part,
    epoch: u64,
    serial: u64,
    offset: i64,
    settled: AtomicBool,
}

impl KafkaLease {
    pub(super) fn new(group: Arc<Group>, line: usize, taken: &Taken) -> Self {
        Self {
            group,
            line,
            part: taken.part.clone(),
            epoch: taken.epoch,
            serial: taken.record.serial,
            offset: taken.record.offset,
            settled: AtomicBool::new(false),
        }
    }

    fn passed_on(&self) -> BrokerError {
        BrokerError::LeaseLost {
            position: position(&self.part.topic, self.part.number, self.offset),
        }
    }

    /// Lets the partition wait with its record for that time, if it is still ours. Returns whether it is.
    fn give_back(&self, delay: Duration, why: &str) -> bool {
        let now = self.group.shared.clock.now();
        // Later than the clock can tell is a lifetime.
        let until = now.checked_add(delay).unwrap_or(now + Duration::from_secs(1 << 30));
        let mut state = self.group.lock();
        let closing = state.closing;
        let Some(partition) = state.current(&self.part, self.epoch) else {
            return false;
        };
        if partition.back_behind(self.serial) {
            return true;
        }
        if !partition.has_out(self.serial) {
            return false;
        }
        partition.back(until);
        if !delay.is_zero() && !closing {
            let offset = self.offset;
            let time = humantime::format_duration(Duration::from_millis(
                u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            ));
            let text = format!("offset {offset} {why} and comes again in {time}");
            self.group.lines[self.line].status.back_off(self.part.name(), text);
        }
        drop(state);
        self.tell();
        true
    }

    /// Hears when that offset of the partition, or a later one, was committed, which is done at once.
    fn hear_committed(&self, state: &mut State, incarnation: u32, offset: i64) -> Receiver<Result<(), BrokerError>> {
        let (tell, told) = oneshot::channel();
        state.urgent = true;
        state.waiters.push(Waiter {
            part: self.part.clone(),
            epoch: self.epoch,
            incarnation,
            offset,
            tell,
        });
        self.group.work.notify_one();
        told
    }

    fn tell(&self) {
        self.group.lines[self.line].wake.notify_one();
        self.group.tell();
    }
}

impl Lease for KafkaLease {
    /// Moves the partition's offset, which is committed within a moment; when the program stops, before this returns.
    async fn ack(&self) -> Result<(), BrokerError> {
        self.settled.store(true, Ordering::Relaxed);
        let (closing, wake, free) = {
            let mut state = self.group.lock();
            let closing = state.closing;
            let ours = state
                .current(&self.part, self.epoch)
                .filter(|partition| partition.has_out(self.serial));
            let Some(partition) = ours else {
                tracing::debug!(
                    partition = self.part.name(),
                    offset = self.offset,
                    "an acknowledgement came after its partition was taken away"
                );
                self.group.lose(&state, self.line, 1);
                return Ok(());
            };
            partition.done();
            let (free, urgent) = (!partition.is_out(), closing || partition.is_ahead());
            self.group.count_unconfirmed(&state, self.line);
            state.urgent |= urgent;
            // It looks by itself while it has something to do.
            (closing, std::mem::take(&mut state.resting) || urgent, free)
        };
        if wake {
            self.group.work.notify_one();
        }
        if free {
            self.group.lines[self.line].wake.notify_one();
        }
        self.group.tell();
        if closing {
            self.group.rest().await;
        }
        Ok(())
    }

    /// The partition may have been read beyond what is committed, up to the first record that isn't done: that one the process
    /// may have died of.
    async fn ack_again(&self) -> Result<(), BrokerError> {
        if let Some(partition) = self.group.lock().current(&self.part, self.epoch) {
            partition.was_done(self.serial);
        }
        self.ack().await
    }

    /// Commits the offset, and returns when the broker has confirmed it.
    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        let told = {
            let mut state = self.group.lock();
            let ours = state
                .current(&self.part, self.epoch)
                .filter(|partition| partition.has_out(self.serial) && !partition.revoked);
            let partition = ours.ok_or_else(|| self.passed_on())?;
            // The partition was made anew, so that nothing can be committed for its old record.
            if !partition.confirm() {
                return Err(self.passed_on());
            }
            // A call before this one was dropped when its offset was on the way.
            if partition.progress.has(self.offset) {
                partition.done();
                drop(state);
                self.settled.store(true, Ordering::Relaxed);
                self.tell();
                return Ok(());
            }
            let incarnation = partition.progress.incarnation();
            self.hear_committed(&mut state, incarnation, self.offset + 1)
        };
        let confirmed = told.await.unwrap_or_else(|_| Err(self.passed_on()));
        {
            let mut state = self.group.lock();
            let partition = state.current(&self.part, self.epoch);
            match (partition, &confirmed) {
                (Some(partition), Ok(())) if partition.has_out(self.serial) => partition.done(),
                (Some(_), Ok(())) => {}
                (Some(partition), Err(_)) => partition.progress.not_confirmed(),
                // It was confirmed while it was ours, so nobody else has it.
                (None, _) => {}
            }
        }
        if confirmed.is_ok() {
            self.settled.store(true, Ordering::Relaxed);
            self.tell();
        }
        confirmed
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.settled.store(true, Ordering::Relaxed);
        if self.give_back(delay, "was given back") && self.group.lock().closing {
            self.group.rest().await;
        }
        Ok(())
    }

    /// Does nothing: a partition is ours as long as it is polled, however long a handler takes.
    async fn progress(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Whether the partition is still assigned to this member, and is not being taken away.
    fn is_ours(&self) -> bool {
        let mut state = self.group.lock();
        let partition = state.current(&self.part, self.epoch);
        partition.is_some_and(|partition| !partition.revoked && partition.holds(self.serial))
    }

    /// Commits what was acknowledged of the partition.
    async fn confirm_earlier(&self) -> Result<(), BrokerError> {
        let told = {
            let mut state = self.group.lock();
            let partition = state.current(&self.part, self.epoch);
            let partition = partition.ok_or_else(|| self.passed_on())?;
            let Some(offset) = partition.progress.due() else {
                return Ok(());
            };
            let incarnation = partition.progress.incarnation();
            self.hear_committed(&mut state, incarnation, offset)
        };
        told.await.unwrap_or_else(|_| Err(self.passed_on()))
    }

    /// The next record of the partition.
    fn next_in_partition(&self) -> Option<(Delivery, Self)> {
        let status = &self.group.lines[self.line].status;
        let mut state = self.group.lock();
        if state.closing {
            return None;
        }
        let partition = state.current(&self.part, self.epoch)?;
        let record = partition.take_behind(self.serial, &self.part, &self.group.prefix, status)?;
        let taken = Taken {
            part: self.part.clone(),
            epoch: self.epoch,
            record,
        };
        let lease = Self::new(self.group.clone(), self.line, &taken);
        Some((taken.record.delivery, lease))
    }
}

impl Drop for KafkaLease {
    /// Dropped without a word, the message comes again when its lease would have run out.
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            let ack_wait = self.group.lines[self.line].ack_wait;
            self.give_back(ack_wait, "was not settled");
        }
    }
}
