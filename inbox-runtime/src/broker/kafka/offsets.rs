//! Where a group begins: at its offset, or on a partition that it has none of, where its handler says.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
};

use super::{
    consumer::Context,
    group::{Group, Line},
    hand::Part,
};
use crate::handler::StartPosition;

/// How long one question to the brokers may take.
const ASK: Duration = Duration::from_secs(5);

/// The time between two tries.
const AGAIN: Duration = Duration::from_millis(200);

/// Where a group begins on a partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Begin {
    /// Its offset, if the broker has one.
    pub(super) committed: Option<i64>,
    /// Where it is to begin, which is to be committed.
    pub(super) at: Option<i64>,
}

/// Decides where the group begins on partitions that it has no offset of.
///
/// With `start = "new"`, a topic that the group has never read begins at its end, and that is committed, so that it stays so; a
/// partition that was added later, and a topic that is newer than the group, begin at their first record. So does a topic whose
/// offsets are lost: the group has read it before. With a time, each partition begins at the first record of that time or later. All
/// other partitions begin at their offset, or else at their first record.
pub(super) fn begin(
    client: &BaseConsumer<Context>,
    group: &Group,
    assigned: &mut TopicPartitionList,
    there: Option<&HashSet<String>>,
) -> BTreeMap<Part, Begin> {
    let mut begun = BTreeMap::new();
    let elements = assigned.elements();
    let topics: BTreeSet<String> = elements.iter().map(|element| element.topic().to_owned()).collect();
    for topic in topics {
        let Some(line) = group.line_of(&topic).map(|line| &group.lines[line]) else {
            continue;
        };
        let parts: Vec<Part> = assigned
            .elements_for_topic(&topic)
            .iter()
            .map(|element| Part::new(&topic, element.partition()))
            .collect();
        for (part, begin) in topic_begin(client, group, line, &topic, &parts, there) {
            // librdkafka must not have to ask for it: where the coordinator changes meanwhile, it never asks again.
            let offset = begin.at.or(begin.committed).map_or(Offset::Beginning, Offset::Offset);
            // It is one of the list, so it can be set.
            let _ = assigned.set_partition_offset(&part.topic, part.number, offset);
            begun.insert(part, begin);
        }
    }
    begun
}

/// The same for the assigned partitions of one topic, which is tried until the brokers answer: a guess would lose messages, repeat
/// them, or handle what was not meant.
fn topic_begin(
    client: &BaseConsumer<Context>,
    group: &Group,
    line: &Line,
    topic: &str,
    parts: &[Part],
    there: Option<&HashSet<String>>,
) -> BTreeMap<Part, Begin> {
    let mut told = false;
    loop {
        let found = committed(client, parts, ASK).and_then(|committed| {
            let missing: Vec<Part> = parts
                .iter()
                .filter(|one| !committed.contains_key(one))
                .cloned()
                .collect();
            let begun = match line.start {
                _ if missing.is_empty() => BTreeMap::new(),
                StartPosition::New if there.is_none_or(|there| there.contains(topic)) => {
                    newest(client, group, line, topic, &missing)?
                }
                StartPosition::Time(millis) => at_time(client, &missing, millis)?,
                _ => BTreeMap::new(),
            };
            Ok((committed, begun))
        });
        match found {
            Ok((committed, begun)) => {
                let mut state = group.lock();
                let mut begin = |part: &Part| match (committed.get(part).copied(), state.stale.remove(part)) {
                    // It was meant for a topic of that name that is gone.
                    (Some(committed), Some(stale)) if committed == stale => Begin {
                        committed: None,
                        at: Some(0),
                    },
                    (committed, _) => Begin {
                        committed,
                        at: begun.get(part).copied(),
                    },
                };
                line.status.clear_blocked(topic);
                return parts.iter().map(|part| (part.clone(), begin(part))).collect();
            }
            Err(error) if is_refused(&error) || group.lock().closing => {
                tracing::debug!(group = group.id, topic, %error, "it can't be found out where the group is");
                return BTreeMap::new();
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(group = group.id, topic, %error, "it can't be found out where the group begins; trying again");
                }
                let why = format!("it can't be found out where the group begins: {error}");
                line.status.set_blocked(topic, why);
                std::thread::sleep(AGAIN);
            }
        }
    }
}

/// Without the right to read the topic nothing is read of it either.
fn is_refused(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed)
}

/// Where a group begins with `start = "new"` on partitions that it has no offset of.
fn newest(
    client: &BaseConsumer<Context>,
    group: &Group,
    line: &Line,
    topic: &str,
    parts: &[Part],
) -> Result<BTreeMap<Part, i64>, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), ASK)?;
    let all = metadata.topics().iter().flat_map(MetadataTopic::partitions);
    let all: Vec<Part> = all.map(|partition| Part::new(topic, partition.id())).collect();
    if !committed(client, &all, ASK)?.is_empty() {
        return Ok(BTreeMap::new());
    }
    if line.known || group.lock().begun.contains(topic) {
        tracing::warn!(
            group = group.id,
            topic,
            "the brokers have no offset of a group that has been here before: its offsets have expired or were deleted; with \
             `start = \"new\"` messages would be skipped, so it begins at the first record, and what it has handled is recognised"
        );
        return Ok(BTreeMap::new());
    }
    find(client, parts, Offset::End, ASK)
}

/// Where a group begins at a time, in milliseconds since 1970: behind the last record, if all are older.
fn at_time(client: &BaseConsumer<Context>, parts: &[Part], millis: i64) -> Result<BTreeMap<Part, i64>, KafkaError> {
    let mut begun = find(client, parts, Offset::Offset(millis.max(0)), ASK)?;
    let older: Vec<Part> = parts.iter().filter(|part| !begun.contains_key(part)).cloned().collect();
    if !older.is_empty() {
        begun.extend(find(client, &older, Offset::End, ASK)?);
    }
    Ok(begun)
}

/// The offsets of the group, where the broker has one.
pub(super) fn committed(
    client: &BaseConsumer<Context>,
    parts: &[Part],
    ask: Duration,
) -> Result<BTreeMap<Part, i64>, KafkaError> {
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    read(&client.committed_offsets(list(parts.iter().map(|part| (part, Offset::Invalid)))?, ask)?)
}

/// Offsets by time: of the first record at a time in milliseconds, of the oldest record ([`Offset::Beginning`]), or behind the
/// newest one that can be read ([`Offset::End`]).
pub(super) fn find(
    client: &BaseConsumer<Context>,
    parts: &[Part],
    time: Offset,
    ask: Duration,
) -> Result<BTreeMap<Part, i64>, KafkaError> {
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    read(&client.offsets_for_times(list(parts.iter().map(|part| (part, time)))?, ask)?)
}

/// Partitions, each with an offset.
pub(super) fn list<'a>(offsets: impl Iterator<Item = (&'a Part, Offset)>) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(offsets.size_hint().0);
    for (part, offset) in offsets {
        list.add_partition_offset(&part.topic, part.number, offset)?;
    }
    Ok(list)
}

/// The offsets of an answer. There may be none of a partition.
fn read(answer: &TopicPartitionList) -> Result<BTreeMap<Part, i64>, KafkaError> {
    let mut found = BTreeMap::new();
    // One name for all partitions of a topic.
    let mut topic: Option<Arc<str>> = None;
    for element in answer.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            let name = topic.take().filter(|name| **name == *element.topic());
            let name = name.unwrap_or_else(|| element.topic().into());
            topic = Some(name.clone());
            found.insert(
                Part {
                    topic: name,
                    number: element.partition(),
                },
                offset,
            );
        }
    }
    Ok(found)
}
