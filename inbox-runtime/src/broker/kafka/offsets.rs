//! Where a group begins on a partition that it has no offset of.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    metadata::MetadataTopic,
};

use super::{consumer::Context, group::Group, partition::Part};
use crate::registry::StartPosition;

/// How long one question to the brokers may take.
const ASK: Duration = Duration::from_secs(5);

/// Decides for the partitions of lines that begin at the newest record: a topic that the group has never read begins at its
/// end, and that is committed, so that it stays so; a partition that was added later, and a topic that is newer than
/// the group, begin at their first record. All other partitions begin at their offset, or else at their first record.
pub(super) fn begin(
    client: &BaseConsumer<Context>,
    group: &Group,
    assigned: &mut TopicPartitionList,
    known: Option<&HashSet<String>>,
) -> BTreeMap<Part, i64> {
    let mut begun = BTreeMap::new();
    let topics: HashSet<String> = assigned
        .elements()
        .iter()
        .map(|element| element.topic().to_owned())
        .filter(|topic| {
            let line = group.line_of(topic).map(|line| &group.lines[line]);
            line.is_some_and(|line| line.start == StartPosition::New) && known.is_none_or(|known| known.contains(topic))
        })
        .collect();
    for topic in topics {
        loop {
            match ends(client, &topic, assigned) {
                Ok(ends) => {
                    for (number, end) in ends {
                        // It is one of the list, so it can be set.
                        let _ = assigned.set_partition_offset(&topic, number, Offset::Offset(end));
                        begun.insert(Part::new(&topic, number), end);
                    }
                    break;
                }
                // On a guess history would be handled, or messages lost.
                Err(error) if !group.lock().closing => {
                    tracing::warn!(group = group.id, topic, %error, "it can't be found out where the group begins; trying again");
                }
                Err(_) => break,
            }
        }
    }
    begun
}

/// The ends of the assigned partitions of a topic that the group has never read.
fn ends(
    client: &BaseConsumer<Context>,
    topic: &str,
    assigned: &TopicPartitionList,
) -> Result<Vec<(i32, i64)>, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), ASK)?;
    let mut all = TopicPartitionList::new();
    for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
        all.add_partition(topic, partition.id());
    }
    let committed = client.committed_offsets(all, ASK)?;
    let never_read = committed
        .elements()
        .iter()
        .all(|element| !matches!(element.offset(), Offset::Offset(_)));
    if !never_read {
        return Ok(Vec::new());
    }
    let ours = assigned.elements_for_topic(topic);
    ours.iter()
        .map(|element| {
            let number = element.partition();
            let (_, end) = client.fetch_watermarks(topic, number, ASK)?;
            Ok((number, end))
        })
        .collect()
}
