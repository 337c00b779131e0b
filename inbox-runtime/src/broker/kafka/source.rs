//! Pulling: the records of a handler's partitions, one of each at a time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{ack::KafkaLease, group::Group, hand::Part};
use crate::{
    broker::{BrokerError, Source, SourceStatus},
    delivery::Delivery,
};

/// How much longer than it was told a pull waits for the group to be joined and its partitions to be looked at: before that
/// nobody knows whether there is nothing.
const LOOK: Duration = Duration::from_secs(5);

/// Where the deliveries of one subscription to Kafka come from.
///
/// Each partition's records come one after the other: the next one when the one before it is acknowledged. Partitions don't
/// wait for each other. Dropped with the other sources of its group, it leaves the group in the background.
#[derive(Debug)]
pub struct KafkaSource {
    group: Arc<Group>,
    line: usize,
    /// The partition that had its turn last.
    after: Option<Part>,
    closed: bool,
}

impl KafkaSource {
    pub(super) fn new(group: Arc<Group>, line: usize) -> Self {
        Self {
            group,
            line,
            after: None,
            closed: false,
        }
    }

    fn take(&mut self, max: usize) -> Result<Vec<(Delivery, KafkaLease)>, BrokerError> {
        let taken = self.group.take(self.line, max, &mut self.after)?;
        let lease = |taken: super::group::Taken| {
            let lease = KafkaLease::new(self.group.clone(), self.line, &taken);
            (taken.record.delivery, lease)
        };
        Ok(taken.into_iter().map(lease).collect())
    }

    /// How long until a record that waits is due.
    fn until_due(&self) -> Duration {
        let now = self.group.shared.clock.now();
        let due = self.group.next_due(self.line);
        due.map_or(Duration::MAX, |due| due.saturating_duration_since(now))
    }
}

impl Source for KafkaSource {
    type Lease = KafkaLease;

    /// # Cancel safety
    ///
    /// What is taken is returned at once, so nothing is lost.
    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 || self.closed {
            return Ok(Vec::new());
        }
        let wake = self.group.lines[self.line].wake.clone();
        let start = Instant::now();
        loop {
            // It keeps a call that comes before it is awaited.
            let woken = wake.notified();
            let taken = self.take(max)?;
            if !taken.is_empty() || wait.is_zero() {
                return Ok(taken);
            }
            let allowed = if self.group.has_looked(self.line) {
                wait
            } else {
                wait.saturating_add(LOOK)
            };
            let rest = allowed.saturating_sub(start.elapsed());
            if rest.is_zero() {
                return Ok(Vec::new());
            }
            let _ = tokio::time::timeout(rest.min(self.until_due()), woken).await;
        }
    }

    /// Waits until what was acknowledged is committed; with nothing out, until the group is left. At most 1.5 s.
    async fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.group.close_line();
            self.group.rest().await;
        }
    }

    fn ack_wait(&self) -> Duration {
        self.group.lines[self.line].ack_wait
    }

    /// A second: what was published just now has to be fetched.
    fn idle_after(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn status(&self) -> SourceStatus {
        self.group.lines[self.line].status.clone()
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        if !self.closed {
            self.group.close_line();
        }
    }
}
