//! The topic subscriptions of a group, one per handler, each with its status for health and metrics.

use std::{
    ops::Index,
    slice::Iter,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{topic_names, topic_partition::TopicPartition};
use crate::{
    broker::{SourceStatus, Subscription},
    handler::StartPosition,
};

/// The parts of a status that are neither a topic nor a partition.
pub(super) const GROUP_PART: &str = "group";
pub(super) const BROKERS_PART: &str = "brokers";

/// The limit where the database tells a duplicate at the cost of a look-up.
const MAX_UNCOMMITTED: usize = 2000;
/// The limit where each record that may be a redelivery is handled, one at a time, with its attempt on record before.
const MAX_UNCOMMITTED_UNCLAIMED: usize = 16;

/// One handler's subscription.
#[derive(Debug)]
pub(super) struct TopicSubscription {
    pub(super) subject: String,
    pub(super) start: StartPosition,
    /// Whether the database has records of the group.
    pub(super) known: bool,
    pub(super) ack_wait: Duration,
    /// The maximum number of processed and uncommitted records of a partition. A crash redelivers no more than these, so as
    /// many records in a row count as possible redeliveries while they turn out to be processed. Without a limit, a group
    /// that is reset to an old offset would be slow all the way.
    pub(super) max_uncommitted: usize,
    pub(super) status: SourceStatus,
    /// Acknowledgements that will never be committed: their partitions were revoked before.
    abandoned_acks: AtomicU64,
    lag_known_at: Mutex<Option<Instant>>,
    /// Wakes the source's pull.
    pub(super) wake: Arc<Notify>,
}

impl TopicSubscription {
    pub(super) fn new(subscription: &Subscription) -> Self {
        Self {
            subject: subscription.subject.clone(),
            start: subscription.start,
            known: subscription.known,
            ack_wait: subscription.ack_wait,
            max_uncommitted: if subscription.claims {
                MAX_UNCOMMITTED
            } else {
                MAX_UNCOMMITTED_UNCLAIMED
            },
            status: SourceStatus::default(),
            abandoned_acks: AtomicU64::new(0),
            lag_known_at: Mutex::default(),
            wake: Arc::new(Notify::new()),
        }
    }

    /// Marks a part as blocked: no messages come from it until that is cleared. The handler is not ready meanwhile.
    pub(super) fn set_blocked(&self, part: impl Into<String>, why: impl Into<String>) {
        self.status.set_blocked(part, why);
    }

    /// Clears whatever a part was blocked by, or backed off for.
    pub(super) fn clear_blocked(&self, part: &str) {
        self.status.clear_blocked(part);
    }

    /// Clears the status of a partition that was revoked.
    pub(super) fn clear_partition(&self, partition: &TopicPartition) {
        self.clear_blocked(&partition.to_string());
        self.clear_blocked(&offset_part(partition));
    }

    /// Sets the number of messages that the group has not acknowledged; `None` if unknown.
    pub(super) fn set_lag(&self, lag: Option<u64>) {
        *self.lag_known_at.lock() = lag.map(|_| Instant::now());
        self.status.set_lag(lag);
    }

    /// Makes a lag unknown that is older than `max_age`.
    fn expire_lag(&self, max_age: Duration) {
        let mut known_at = self.lag_known_at.lock();
        if known_at.take_if(|known_at| known_at.elapsed() > max_age).is_some() {
            self.status.set_lag(None);
        }
    }

    /// Counts acknowledgements that will never be committed, as their partition has another owner.
    pub(super) fn abandon_acks(&self, acknowledgements: usize) {
        self.abandoned_acks
            .fetch_add(acknowledgements as u64, Ordering::Relaxed);
    }

    /// Sets the number of acknowledgements that are not committed yet.
    pub(super) fn set_uncommitted(&self, acknowledgements: usize) {
        let abandoned = self.abandoned_acks.load(Ordering::Relaxed);
        self.status.set_unconfirmed(abandoned + acknowledgements as u64);
    }
}

/// The part of a status that is the offset of a partition.
pub(super) fn offset_part(partition: &TopicPartition) -> String {
    format!("the offset of {partition}")
}

/// All subscriptions of a group.
#[derive(Debug)]
pub(super) struct Subscriptions {
    pub(super) group_id: String,
    /// The prefix of every topic.
    pub(super) prefix: String,
    list: Vec<TopicSubscription>,
}

impl Subscriptions {
    pub(super) fn new(group_id: String, prefix: String, list: Vec<TopicSubscription>) -> Self {
        Self { group_id, prefix, list }
    }

    pub(super) fn iter(&self) -> Iter<'_, TopicSubscription> {
        self.list.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The subscription that a topic belongs to, with its index.
    pub(super) fn find(&self, topic: &str) -> Option<(usize, &TopicSubscription)> {
        let mut subscriptions = self.list.iter().enumerate();
        subscriptions.find(|(_, subscription)| topic_names::matches(&self.prefix, &subscription.subject, topic))
    }

    /// The topic of a subscription without wildcards.
    pub(super) fn topic(&self, subscription: &TopicSubscription) -> String {
        topic_names::topic(&self.prefix, &subscription.subject)
    }

    pub(super) fn wake_all(&self) {
        for subscription in &self.list {
            subscription.wake.notify_one();
        }
    }

    /// Marks a part as blocked in every subscription.
    pub(super) fn set_blocked(&self, part: &str, why: &str) {
        for subscription in &self.list {
            subscription.set_blocked(part, why);
        }
    }

    pub(super) fn clear_blocked(&self, part: &str) {
        for subscription in &self.list {
            subscription.clear_blocked(part);
        }
    }

    pub(super) fn expire_lag(&self, max_age: Duration) {
        for subscription in &self.list {
            subscription.expire_lag(max_age);
        }
    }
}

impl Index<usize> for Subscriptions {
    type Output = TopicSubscription;

    fn index(&self, index: usize) -> &Self::Output {
        &self.list[index]
    }
}
