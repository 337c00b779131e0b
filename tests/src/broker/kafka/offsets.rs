//! Offsets: what a group has committed, and what is left.

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::KafkaResult,
    groups::GroupInfo,
};

use super::{KafkaCluster, REQUEST_TIMEOUT, retry};
use crate::broker::Settled;

impl KafkaCluster {
    /// The committed offsets of a group on the partitions of a subject, by partition; `None` where there is none.
    ///
    /// # Panics
    ///
    /// If the server doesn't answer.
    pub async fn committed(&self, group: &str, subject: &str) -> Vec<Option<i64>> {
        retry(async || self.try_committed(group, subject).await.ok_or("no answer")).await
    }

    /// The same; `None` if the server doesn't answer.
    pub async fn try_committed(&self, group: &str, subject: &str) -> Option<Vec<Option<i64>>> {
        let topic = format!("{}{subject}", self.prefix);
        let partitions = self.observe(group, move |client| offsets(client, &topic)).await.ok()?;
        Some(partitions.into_iter().map(|(committed, _)| committed).collect())
    }

    /// [`settled`](crate::TestBroker::settled); an error if the server doesn't answer.
    pub async fn try_settled(&self, group: &str, subject: &str) -> KafkaResult<Option<Settled>> {
        let unsettled = self.kafka.unsettled(group).await as u64;
        let topics: Vec<String> = {
            let topics = self.topics.lock();
            let wildcard = subject.strip_suffix('>');
            let is_ours = |topic: &&String| {
                let topic = &topic[self.prefix.len()..];
                wildcard.map_or(topic == subject, |start| topic.starts_with(start))
            };
            let ours = topics.keys().filter(is_ours);
            ours.cloned().collect()
        };
        let id = format!("{}{group}", self.prefix);
        let left = self.observe(group, move |client| -> KafkaResult<Option<i64>> {
            let partitions: KafkaResult<Vec<_>> = topics.iter().map(|topic| offsets(client, topic)).collect();
            let partitions = partitions?.concat();
            let unread = partitions.iter().all(|(committed, _)| committed.is_none());
            if unread && !exists(client, &id)? {
                return Ok(None);
            }
            let left = partitions.iter().map(|(committed, end)| end - committed.unwrap_or(0));
            Ok(Some(left.sum::<i64>()))
        });
        let Some(left) = left.await? else { return Ok(None) };
        let left = u64::try_from(left).expect("an offset before the end");
        let unacked = unsettled.min(left);
        Ok(Some(Settled {
            waiting: left - unacked,
            unacked,
        }))
    }
}

/// The committed offset and the end of each partition of a topic.
fn offsets(consumer: &BaseConsumer, topic: &str) -> KafkaResult<Vec<(Option<i64>, i64)>> {
    let metadata = consumer.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        partitions.add_partition(topic, partition.id());
    }
    let committed = consumer.committed_offsets(partitions, REQUEST_TIMEOUT)?;
    let mut found = Vec::new();
    for element in committed.elements() {
        element.error()?;
        let (first, end) = consumer.fetch_watermarks(topic, element.partition(), REQUEST_TIMEOUT)?;
        let committed = match element.offset() {
            Offset::Offset(offset) => Some(offset.max(first)),
            _ => None,
        };
        found.push((element.partition(), committed, end));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, committed, end)| (committed, end)).collect())
}

/// Whether a group has had members.
fn exists(consumer: &BaseConsumer, group: &str) -> KafkaResult<bool> {
    let groups = consumer.fetch_group_list(Some(group), REQUEST_TIMEOUT)?;
    let mut states = groups.groups().iter().map(GroupInfo::state);
    Ok(states.any(|state| !["", "Dead"].contains(&state)))
}
