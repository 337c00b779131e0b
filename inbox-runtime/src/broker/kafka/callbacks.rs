//! The group's side of its consumer's callbacks.

use std::{sync::Arc, time::Duration};

use rdkafka::{Statistics, TopicPartitionList};

use super::{
    client::{Client, GroupEvents},
    group::Group,
    group_health::GroupHealth,
    options::KafkaOptions,
    rebalance, recreated,
    subscriptions::GROUP_PART,
};

/// The default of how long a revoked partition's deliveries may take to be settled.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// After how many milliseconds a member of a group with `group.protocol=consumer` counts as joined without a partition.
const JOINED_AFTER_MS: i64 = 2000;

/// The callbacks of one client.
pub(super) struct GroupCallbacks {
    group: Arc<Group>,
    /// How long a revocation waits for deliveries to be settled. Well below `max.poll.interval.ms`.
    drain_timeout: Duration,
    /// Whether the brokers assign the partitions (`group.protocol=consumer`).
    broker_assigns: bool,
}

impl GroupCallbacks {
    pub(super) fn new(group: Arc<Group>, options: &KafkaOptions) -> Self {
        let max_poll_interval = options.get("max.poll.interval.ms").and_then(|text| text.parse().ok());
        let max_poll_interval = max_poll_interval.map(Duration::from_millis);
        Self {
            group,
            drain_timeout: max_poll_interval.map_or(DRAIN_TIMEOUT, |interval| DRAIN_TIMEOUT.min(interval / 3)),
            broker_assigns: options.get("group.protocol") == Some("consumer"),
        }
    }
}

impl GroupEvents for GroupCallbacks {
    fn on_metadata_log(&self, line: &str) {
        if let Some(topic) = recreated::topic_with_new_id(line) {
            self.group.add_recreated(topic);
        }
        if let Some(topic) = recreated::deleted_topic(line) {
            self.group.mark_topic_deleted(topic);
        }
    }

    /// Updates whether the brokers answer, whether the group is joined, and which partitions are read to their end.
    fn on_statistics(&self, health: &GroupHealth, statistics: &Statistics) {
        if let Some(consumer_group) = &statistics.cgrp {
            if consumer_group.join_state == "steady" {
                health.clear(GROUP_PART);
                self.group.joined.send_replace(true);
            } else if self.broker_assigns && consumer_group.state == "up" && consumer_group.stateage > JOINED_AFTER_MS {
                // With this protocol a member without partitions gets no callback and stays in its first join state.
                health.clear(GROUP_PART);
            }
        }
        let mut state = self.group.lock();
        state.brokers_answer = statistics.brokers.values().any(|broker| broker.state == "UP");
        for (id, partition) in &mut state.partitions {
            let topic = statistics.topics.get(&*id.topic);
            let seen = topic.and_then(|topic| topic.partitions.get(&id.partition));
            if let Some(seen) = seen.filter(|seen| seen.fetchq_cnt == 0 && seen.eof_offset >= 0) {
                partition.record_end(seen.eof_offset);
            }
        }
    }

    fn on_assigned(&self, client: &Client, assigned: &mut TopicPartitionList) {
        rebalance::assign(&self.group, client, assigned);
    }

    fn on_revoked(&self, client: &Client, revoked: &TopicPartitionList) {
        rebalance::revoke(&self.group, client, revoked, self.drain_timeout);
    }
}
