//! Requests for offsets, of a group or of records.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rdkafka::{Offset, TopicPartitionList, consumer::Consumer, error::KafkaError};

use super::{client::Client, topic_partition::TopicPartition};

/// The group's committed offsets. Partitions without one are left out.
pub(super) fn committed(
    client: &Client,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<BTreeMap<TopicPartition, i64>, KafkaError> {
    if partitions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let request = list(partitions.iter().map(|id| (id, Offset::Invalid)))?;
    read(&client.committed_offsets(request, timeout)?)
}

/// Offsets by time: of the first record at or after a time in milliseconds, of the oldest record
/// ([`Offset::Beginning`]), or after the newest readable one ([`Offset::End`]). Partitions without one are left out.
pub(super) fn by_time(
    client: &Client,
    partitions: &[TopicPartition],
    time: Offset,
    timeout: Duration,
) -> Result<BTreeMap<TopicPartition, i64>, KafkaError> {
    if partitions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let request = list(partitions.iter().map(|id| (id, time)))?;
    read(&client.offsets_for_times(request, timeout)?)
}

/// A list of partitions with offsets.
pub(super) fn list<'a>(
    offsets: impl Iterator<Item = (&'a TopicPartition, Offset)>,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(offsets.size_hint().0);
    for (id, offset) in offsets {
        list.add_partition_offset(&id.topic, id.partition, offset)?;
    }
    Ok(list)
}

/// The offsets of a response.
fn read(response: &TopicPartitionList) -> Result<BTreeMap<TopicPartition, i64>, KafkaError> {
    let mut offsets = BTreeMap::new();
    // One allocation for all partitions of a topic.
    let mut last_topic: Option<Arc<str>> = None;
    for element in response.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            let topic = last_topic.take().filter(|topic| **topic == *element.topic());
            let topic = topic.unwrap_or_else(|| element.topic().into());
            last_topic = Some(topic.clone());
            offsets.insert(TopicPartition::new(topic, element.partition()), offset);
        }
    }
    Ok(offsets)
}
