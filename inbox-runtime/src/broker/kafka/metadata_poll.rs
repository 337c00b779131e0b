//! The thread that polls the metadata and offsets of all groups every few seconds: missing topics, partitions without a
//! leader, lag, and records that were removed before the group read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    Offset,
    consumer::Consumer,
    error::KafkaError,
    metadata::{Metadata, MetadataTopic},
};

use super::{
    client::Client,
    group::{Group, GroupState},
    groups::Groups,
    offsets, partition_errors, topic_names,
    topic_partition::TopicPartition,
};
use crate::handler::StartPosition;

/// The time between two polls of a group.
const INTERVAL: Duration = Duration::from_secs(5);
/// How soon a poll is done that is wanted at once.
const TICK: Duration = Duration::from_millis(500);
/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a lag counts as known.
const MAX_LAG_AGE: Duration = Duration::from_secs(15);

/// The topics of a subscription with their partitions, each with whether it has a leader.
type TopicLeaders = BTreeMap<String, Vec<(i32, bool)>>;

/// Polls until there are no more groups and nobody is left who could start one.
pub(super) fn run(groups: &Arc<Groups>) {
    loop {
        let running = groups.running();
        if running.is_empty() && Arc::strong_count(groups) == 1 {
            return;
        }
        for group in &running {
            if let Some(client) = is_due(group) {
                poll(group, &client);
            }
        }
        for group in &running {
            group.subscriptions.expire_lag(MAX_LAG_AGE);
        }
        drop(running);
        std::thread::sleep(TICK);
    }
}

/// The client of a group that is to be polled now.
fn is_due(group: &Group) -> Option<Arc<Client>> {
    let mut state = group.lock();
    let now = Instant::now();
    let is_time = state.next_metadata_poll.is_none_or(|next| next <= now);
    if !is_time || !state.brokers_answer || state.closing {
        return None;
    }
    state.next_metadata_poll = Some(now + INTERVAL);
    state.client.clone()
}

fn poll(group: &Group, client: &Client) {
    let topics = match find_topics(group, client) {
        Ok(topics) => topics,
        Err(error) => {
            tracing::debug!(group = group.id(), %error, "the brokers return no metadata");
            return;
        }
    };
    for (subscription, topics) in topics.iter().enumerate() {
        check_leaders(group, subscription, topics);
        match GroupOffsets::request(client, topics) {
            Ok(offsets) => record_offsets(group, subscription, topics, &offsets),
            Err(error) => tracing::debug!(group = group.id(), %error, "the brokers return no offsets"),
        }
    }
    refetch(group, client);
}

/// The topics of each subscription. Updates in the status which are missing.
fn find_topics(group: &Group, client: &Client) -> Result<Vec<TopicLeaders>, KafkaError> {
    let subscriptions = &group.subscriptions;
    // If one may be missing, all topics are requested: requesting a topic creates it, if the brokers are configured so.
    let has_wildcard = |subject: &str| topic_names::has_wildcard(subject);
    let request_all = group.lock().topic_missing || subscriptions.iter().any(|one| has_wildcard(&one.subject));
    let all = request_all
        .then(|| client.fetch_metadata(None, REQUEST_TIMEOUT))
        .transpose()?;
    let health = &client.context().health;
    let mut found = Vec::new();
    let mut any_missing = false;
    for subscription in subscriptions.iter() {
        let subject = &subscription.subject;
        let topic = subscriptions.topic(subscription);
        let topics = match &all {
            Some(all) => matching_topics(group, subject, all),
            None => matching_topics(group, subject, &client.fetch_metadata(Some(&topic), REQUEST_TIMEOUT)?),
        };
        let missing = topics.is_empty() && !has_wildcard(subject);
        if !missing {
            health.clear(subject);
        } else if !health.is_blocked(subject) {
            subscription.set_blocked(subject, format!("there is no topic `{topic}`"));
        }
        any_missing |= missing;
        found.push(topics);
    }
    group.lock().topic_missing = any_missing;
    Ok(found)
}

fn matching_topics(group: &Group, subject: &str, metadata: &Metadata) -> TopicLeaders {
    let prefix = &group.subscriptions.prefix;
    let topics = metadata
        .topics()
        .iter()
        .filter(|topic| !topic.partitions().is_empty() && topic_names::matches(prefix, subject, topic.name()));
    let leaders = |topic: &MetadataTopic| {
        let partitions = topic.partitions().iter();
        partitions
            .map(|partition| (partition.id(), partition.leader() >= 0))
            .collect()
    };
    topics.map(|topic| (topic.name().to_owned(), leaders(topic))).collect()
}

/// Updates in the status which of our partitions have no leader.
fn check_leaders(group: &Group, subscription: usize, topics: &TopicLeaders) {
    let subscription = &group.subscriptions[subscription];
    let state = group.lock();
    for (topic, partitions) in topics {
        let is_ours = |number: i32| {
            let id = TopicPartition::new(topic.as_str(), number);
            state.partitions.contains_key(&id)
        };
        let leaderless: Vec<i32> = partitions
            .iter()
            .filter(|(number, has_leader)| !has_leader && is_ours(*number))
            .map(|(number, _)| *number)
            .collect();
        if leaderless.is_empty() {
            subscription.clear_blocked(topic);
        } else {
            subscription.set_blocked(topic, partition_errors::no_leader(topic, &leaderless));
        }
    }
}

/// The offsets of a group on the partitions of a subscription, those of other members included.
struct GroupOffsets {
    committed: BTreeMap<TopicPartition, i64>,
    /// Of the oldest record.
    first: BTreeMap<TopicPartition, i64>,
    /// After the newest record that can be read.
    end: BTreeMap<TopicPartition, i64>,
}

impl GroupOffsets {
    fn request(client: &Client, topics: &TopicLeaders) -> Result<Self, KafkaError> {
        let mut with_leader = Vec::new();
        for (topic, partitions) in topics {
            let partitions = partitions.iter().filter(|(_, has_leader)| *has_leader);
            with_leader.extend(partitions.map(|(number, _)| TopicPartition::new(topic.as_str(), *number)));
        }
        Ok(Self {
            committed: offsets::committed(client, &with_leader, REQUEST_TIMEOUT)?,
            first: offsets::by_time(client, &with_leader, Offset::Beginning, REQUEST_TIMEOUT)?,
            end: offsets::by_time(client, &with_leader, Offset::End, REQUEST_TIMEOUT)?,
        })
    }

    /// How many messages the group has not committed. `None` if that isn't known of every partition.
    fn lag(&self, topics: &TopicLeaders, start: StartPosition) -> Option<u64> {
        let mut lag = 0;
        for (topic, partitions) in topics {
            let ids = partitions.iter();
            let ids: Vec<_> = ids
                .map(|(number, _)| TopicPartition::new(topic.as_str(), *number))
                .collect();
            let never_read = !ids.iter().any(|id| self.committed.contains_key(id));
            for id in ids {
                let (first, end) = (*self.first.get(&id)?, *self.end.get(&id)?);
                let position = match (self.committed.get(&id), start) {
                    (Some(committed), _) => *committed,
                    (None, StartPosition::First) => first,
                    (None, StartPosition::New) if !never_read => first,
                    // Decided when the partition is assigned.
                    (None, _) => return None,
                };
                lag += u64::try_from(end - position.max(first)).unwrap_or_default();
            }
        }
        Some(lag)
    }
}

/// Records the lag of a subscription and the bounds of its partitions, and logs removed records.
fn record_offsets(group: &Group, index: usize, topics: &TopicLeaders, offsets: &GroupOffsets) {
    let subscription = &group.subscriptions[index];
    subscription.set_lag(offsets.lag(topics, subscription.start));
    let mut state = group.lock();
    let GroupState { partitions, .. } = &mut *state;
    for (id, partition) in partitions
        .iter_mut()
        .filter(|(_, partition)| partition.subscription == index)
    {
        let (Some(first), Some(end)) = (offsets.first.get(id), offsets.end.get(id)) else {
            continue;
        };
        let removed = partition.check_bounds(*first, *end);
        if removed > 0 {
            tracing::warn!(
                group = group.id(),
                partition = %id,
                removed,
                first,
                "records were removed before the group read them; raise the topic's retention (`retention.ms`, `retention.bytes`)"
            );
        }
    }
    drop(state);
    group.commit_wanted.notify_one();
}

/// Restarts the fetch of partitions where it fails. Otherwise librdkafka would not report that it works again until
/// there is a new record.
fn refetch(group: &Group, client: &Client) {
    let failing: BTreeSet<(TopicPartition, i64)> = {
        let state = group.lock();
        let partitions = state.partitions.iter();
        partitions
            .filter_map(|(id, partition)| Some((id.clone(), partition.refetch_offset()?)))
            .collect()
    };
    for (id, offset) in failing {
        // A timeout of zero doesn't wait for the result.
        let result = client.seek(&id.topic, id.partition, Offset::Offset(offset), Duration::ZERO);
        if let Err(error) = result {
            tracing::debug!(partition = %id, %error, "the fetch of a partition can't be restarted");
        }
    }
}
