//! Where a group starts on an assigned partition: at its committed offset, or else where the handler's `start` says.
//!
//! With `start = "new"`, a topic that the group has never read starts at its end, which is committed so that it stays
//! so. A partition that was added later starts at its first record, and so does a topic that is newer than the group,
//! and one whose committed offsets are lost. With a time, each partition starts at the first record of that time or
//! later. Everything else starts at its first record.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::Consumer,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
};

use super::{client::Client, group::Group, offsets, subscriptions::TopicSubscription, topic_partition::TopicPartition};
use crate::handler::StartPosition;

/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two tries.
const RETRY_DELAY: Duration = Duration::from_millis(200);

type Offsets = BTreeMap<TopicPartition, i64>;

/// Where a group starts on a partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StartOffset {
    /// The group's committed offset.
    pub(super) committed: Option<i64>,
    /// The offset to start at and to commit, in place of the committed one.
    pub(super) start_at: Option<i64>,
}

/// Decides where the group starts on the assigned partitions, and sets the offsets in the list. `initial_topics` are
/// the topics that existed when the group was joined; `None` if that isn't known.
pub(super) fn decide(
    client: &Client,
    group: &Group,
    assigned: &mut TopicPartitionList,
    initial_topics: Option<&HashSet<String>>,
) -> BTreeMap<TopicPartition, StartOffset> {
    let mut starts = BTreeMap::new();
    let elements = assigned.elements();
    let topics: BTreeSet<String> = elements.iter().map(|element| element.topic().to_owned()).collect();
    for topic in topics {
        let Some((_, subscription)) = group.subscriptions.find(&topic) else {
            continue;
        };
        let partitions: Vec<_> = assigned
            .elements_for_topic(&topic)
            .iter()
            .map(|element| TopicPartition::new(topic.as_str(), element.partition()))
            .collect();
        let existed = initial_topics.is_none_or(|topics| topics.contains(&topic));
        for (id, start) in decide_topic(client, group, subscription, &topic, &partitions, existed) {
            // Explicit, so that librdkafka need not ask the coordinator: if that changes meanwhile, it never asks
            // again.
            let offset = start.start_at.or(start.committed);
            let offset = offset.map_or(Offset::Beginning, Offset::Offset);
            // The partition is in the list, so this can't fail.
            let _ = assigned.set_partition_offset(&id.topic, id.partition, offset);
            starts.insert(id, start);
        }
    }
    starts
}

/// Decides for the assigned partitions of one topic. Retries until the brokers answer: a guess would lose messages,
/// repeat them, or handle some that were not meant to be. Gives up if the topic may not be read, or the group is
/// closing.
fn decide_topic(
    client: &Client,
    group: &Group,
    subscription: &TopicSubscription,
    topic: &str,
    partitions: &[TopicPartition],
    existed: bool,
) -> BTreeMap<TopicPartition, StartOffset> {
    let mut logged = false;
    loop {
        let error = match request(client, group, subscription, topic, partitions, existed) {
            Ok((committed, starts)) => {
                subscription.clear_blocked(topic);
                return without_stale(group, partitions, &committed, &starts);
            }
            Err(error) => error,
        };
        let may_not_read = error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed);
        if may_not_read || group.lock().closing {
            tracing::debug!(group = group.id(), topic, %error, "the group's offsets are not known");
            return BTreeMap::new();
        }
        if !std::mem::replace(&mut logged, true) {
            tracing::warn!(group = group.id(), topic, %error, "the group's start offsets are not known; trying again");
        }
        subscription.set_blocked(topic, format!("the group's start offsets are not known: {error}"));
        std::thread::sleep(RETRY_DELAY);
    }
}

/// The committed offsets, and the start offsets of partitions without one.
fn request(
    client: &Client,
    group: &Group,
    subscription: &TopicSubscription,
    topic: &str,
    partitions: &[TopicPartition],
    existed: bool,
) -> Result<(Offsets, Offsets), KafkaError> {
    let committed = offsets::committed(client, partitions, REQUEST_TIMEOUT)?;
    let uncommitted: Vec<_> = partitions
        .iter()
        .filter(|id| !committed.contains_key(id))
        .cloned()
        .collect();
    let starts = match subscription.start {
        _ if uncommitted.is_empty() => BTreeMap::new(),
        StartPosition::New if existed => at_end(client, group, subscription, topic, &uncommitted)?,
        StartPosition::Time(millis) => at_time(client, &uncommitted, millis)?,
        _ => BTreeMap::new(),
    };
    Ok((committed, starts))
}

/// Ignores committed offsets that belong to a deleted topic of the same name.
fn without_stale(
    group: &Group,
    partitions: &[TopicPartition],
    committed: &Offsets,
    starts: &Offsets,
) -> BTreeMap<TopicPartition, StartOffset> {
    let mut state = group.lock();
    let mut start = |id: &TopicPartition| match (committed.get(id).copied(), state.stale_offsets.remove(id)) {
        (Some(committed), Some(stale)) if committed == stale => StartOffset {
            committed: None,
            start_at: Some(0),
        },
        (committed, _) => StartOffset {
            committed,
            start_at: starts.get(id).copied(),
        },
    };
    partitions.iter().map(|id| (id.clone(), start(id))).collect()
}

/// The start offsets with `start = "new"`, of partitions without a committed one.
fn at_end(
    client: &Client,
    group: &Group,
    subscription: &TopicSubscription,
    topic: &str,
    partitions: &[TopicPartition],
) -> Result<Offsets, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
    let all = metadata.topics().iter().flat_map(MetadataTopic::partitions);
    let all: Vec<_> = all
        .map(|partition| TopicPartition::new(topic, partition.id()))
        .collect();
    if !offsets::committed(client, &all, REQUEST_TIMEOUT)?.is_empty() {
        return Ok(BTreeMap::new());
    }
    if subscription.known || group.lock().known_topics.contains(topic) {
        tracing::warn!(
            group = group.id(),
            topic,
            "the brokers have no offsets of a group that has run before: they have expired or were deleted; with `start = \"new\"` \
             messages would be skipped, so the group starts at the first record, and duplicates are recognised"
        );
        return Ok(BTreeMap::new());
    }
    offsets::by_time(client, partitions, Offset::End, REQUEST_TIMEOUT)
}

/// The start offsets with a time, in milliseconds since 1970: after the last record, if all are older.
fn at_time(client: &Client, partitions: &[TopicPartition], millis: i64) -> Result<Offsets, KafkaError> {
    let mut starts = offsets::by_time(client, partitions, Offset::Offset(millis.max(0)), REQUEST_TIMEOUT)?;
    let older: Vec<_> = partitions
        .iter()
        .filter(|id| !starts.contains_key(id))
        .cloned()
        .collect();
    starts.extend(offsets::by_time(client, &older, Offset::End, REQUEST_TIMEOUT)?);
    Ok(starts)
}
