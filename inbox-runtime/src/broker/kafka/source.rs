//! Pulling the records of a handler's partitions, one of each at a time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{group::Group, lease::KafkaLease, topic_partition::TopicPartition};
use crate::{
    broker::{BrokerError, Source, SourceStatus},
    delivery::Delivery,
};

/// How much longer a pull waits while the group is not joined or its partitions are not fetched from: before that an
/// empty pull would not mean that there is nothing.
const FIRST_FETCH: Duration = Duration::from_secs(5);

/// The source of one subscription's deliveries from Kafka.
///
/// Each partition's records are delivered in order: the next one when the one before it is settled. Partitions don't
/// wait for each other. Dropped with the other sources of its group, it leaves the group in the background.
#[derive(Debug)]
pub struct KafkaSource {
    group: Arc<Group>,
    subscription: usize,
    /// The partition that delivered last.
    last: Option<TopicPartition>,
    closed: bool,
}

impl KafkaSource {
    pub(super) fn new(group: Arc<Group>, subscription: usize) -> Self {
        Self {
            group,
            subscription,
            last: None,
            closed: false,
        }
    }

    fn pull_ready(&mut self, max: usize) -> Result<Vec<(Delivery, KafkaLease)>, BrokerError> {
        let pulled = self.group.pull(self.subscription, max, &mut self.last)?;
        let deliver = |pulled| KafkaLease::deliver(self.group.clone(), self.subscription, pulled);
        Ok(pulled.into_iter().map(deliver).collect())
    }

    /// The time until a record that backs off is redelivered.
    fn until_redelivery(&self) -> Duration {
        let now = self.group.clock.now();
        let next = self.group.next_redelivery(self.subscription);
        next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }
}

impl Source for KafkaSource {
    type Lease = KafkaLease;

    /// # Cancel safety
    ///
    /// Cancel safe: pulled records are returned without a wait in between.
    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 || self.closed {
            return Ok(Vec::new());
        }
        let wake = self.group.subscriptions[self.subscription].wake.clone();
        let start = Instant::now();
        loop {
            // Created before the pull, so that a notification in between isn't lost.
            let woken = wake.notified();
            let pulled = self.pull_ready(max)?;
            if !pulled.is_empty() || wait.is_zero() {
                return Ok(pulled);
            }
            let allowed = if self.group.has_fetched(self.subscription) {
                wait
            } else {
                wait.saturating_add(FIRST_FETCH)
            };
            let left = allowed.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            let _ = tokio::time::timeout(left.min(self.until_redelivery()), woken).await;
        }
    }

    /// Waits until acknowledged offsets are committed; after the group's last source, and with nothing in flight, until
    /// the group is left. At most 1.5 s.
    async fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.group.close_source();
            self.group.wait_committed().await;
        }
    }

    fn ack_wait(&self) -> Duration {
        self.group.subscriptions[self.subscription].ack_wait
    }

    /// A second, as a record that was just published has to be fetched first.
    fn idle_after(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn status(&self) -> SourceStatus {
        self.group.subscriptions[self.subscription].status.clone()
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        if !self.closed {
            self.group.close_source();
        }
    }
}
