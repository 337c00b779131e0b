//! Topics that are deleted and recreated while the group reads them.
//!
//! The new topic starts at offset 0. If it has fewer records than were read of the old one, librdkafka finds its offset
//! out of range and starts at the beginning. If it has more, librdkafka would continue in the middle of them, and the
//! ones before would be lost. Its only sign of that is a log line, when the brokers report another topic id; so those
//! lines are parsed here.

use std::time::Duration;

use rdkafka::{Offset, consumer::Consumer};

use super::{
    client::Client,
    group::{Group, RecreatedTopic},
};

/// The id of a topic whose id wasn't known.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The topic that got another id, if a log line of librdkafka says so:
/// `[thrd:main]: Topic orders changed id from ihUUTZJFSd2bASTnKmUA2A to j5lU3cyeTd6Zpp7WXbKSEw`.
pub(super) fn topic_with_new_id(line: &str) -> Option<&str> {
    let (before, ids) = line.split_once(" changed id from ")?;
    let (topic, old_id) = (before.rsplit(' ').next()?, ids.split(' ').next()?);
    (!old_id.starts_with(NO_ID)).then_some(topic)
}

/// The topic that no longer exists, if a log line of librdkafka says so: `[thrd:main]: Topic orders does not exist,
/// allowing 29796ms for metadata propagation before marking topic as non-existent`.
pub(super) fn deleted_topic(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" does not exist, allowing ")?;
    before.rsplit(' ').next()
}

/// Seeks to the beginning of the partitions of recreated topics.
pub(super) fn seek_recreated(group: &Group, client: &Client) {
    for RecreatedTopic { topic, since } in group.take_recreated() {
        let mut state = group.lock();
        for (id, partition) in &mut state.partitions {
            if *id.topic != *topic || !partition.mark_recreated(since) {
                continue;
            }
            tracing::warn!(
                group = group.id(),
                partition = %id,
                "the topic was deleted and recreated; it is read from its beginning"
            );
            // A timeout of zero doesn't wait for the result.
            if let Err(error) = client.seek(&id.topic, id.partition, Offset::Beginning, Duration::ZERO) {
                tracing::error!(
                    group = group.id(),
                    partition = %id,
                    %error,
                    "a partition of a recreated topic can't be read from its beginning; restart this program"
                );
            }
        }
        drop(state);
        group.commit_wanted.notify_one();
        group.subscriptions.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g12_a_recreated_topic_is_parsed_from_the_log() {
        let line = "[thrd:main]: Topic t1.orders changed id from ihUUTZJFSd2bASTnKmUA2A to j5lU3cyeTd6Zpp7WXbKSEw";
        assert_eq!(topic_with_new_id(line), Some("t1.orders"));
        let first = "[thrd:main]: Topic t1.orders changed id from AAAAAAAAAAAAAAAAAAAAAA to j5lU3cyeTd6Zpp7WXbKSEw";
        assert_eq!(topic_with_new_id(first), None);
        assert_eq!(
            topic_with_new_id("[thrd:main]: Topic t1.orders [0] Leader 1 Epoch 0"),
            None
        );
        let line =
            "[thrd:main]: Topic t1.orders does not exist, allowing 29796ms for metadata propagation before marking";
        assert_eq!((deleted_topic(line), deleted_topic(first)), (Some("t1.orders"), None));
    }
}
