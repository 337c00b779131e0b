//! Topics that are deleted and made anew while their records are read.
//!
//! The new topic's records begin at offset 0. Where it has fewer of them than were read of the old one, librdkafka notices that its
//! offset is none of the topic's, and begins anew by itself. Where it has more, librdkafka goes on in the midst of them, and
//! what comes before would be lost. All that it says is a line in its log, when the brokers tell another id of the topic; so
//! those are read here.

use std::time::{Duration, Instant};

use rdkafka::{Offset, consumer::Consumer};

use super::group::{Client, Group, State};

/// The id of a topic whose id wasn't known.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// A topic that has another id since then.
pub(super) struct Anew {
    topic: String,
    since: Instant,
}

/// The topic that has another id, if a line of librdkafka's log says so:
/// `[thrd:main]: Topic orders changed id from ihUUTZJFSd2bASTnKmUA2A to j5lU3cyeTd6Zpp7WXbKSEw`.
pub(super) fn topic(line: &str) -> Option<&str> {
    let (before, ids) = line.split_once(" changed id from ")?;
    let (topic, old) = (before.rsplit(' ').next()?, ids.split(' ').next()?);
    (!old.starts_with(NO_ID)).then_some(topic)
}

/// The topic that isn't there any more, if a line of librdkafka's log says so:
/// `[thrd:main]: Topic orders does not exist, allowing 29796ms for metadata propagation before marking topic as non-existent`.
pub(super) fn gone(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" does not exist, allowing ")?;
    before.rsplit(' ').next()
}

impl Group {
    /// A topic isn't there any more. What was not committed by now can't be; and if a commit of it is under way, librdkafka tries it
    /// again, so that it may come to a new topic of that name.
    pub(super) fn gone(&self, topic: &str) {
        let mut state = self.lock();
        let State { partitions, stale, .. } = &mut *state;
        for (part, partition) in partitions.iter_mut().filter(|(part, _)| *part.topic == *topic) {
            if let Some(offset) = partition.progress.due() {
                stale.insert(part.clone(), offset);
            }
            partition.begin_anew();
        }
    }

    /// A topic has another id than before.
    pub(super) fn made_anew(&self, topic: &str) {
        let anew = Anew {
            topic: topic.to_owned(),
            since: Instant::now(),
        };
        self.lock_anew().push(anew);
    }
}

/// Lets the partitions of topics that were made anew be read from their beginning.
pub(super) fn read_again(group: &Group, client: &Client) {
    let anew = std::mem::take(&mut *group.lock_anew());
    for Anew { topic, since } in anew {
        let mut state = group.lock();
        for (part, partition) in &mut state.partitions {
            if *part.topic != *topic || !partition.made_anew(since) {
                continue;
            }
            tracing::warn!(
                group = group.id,
                partition = part.name(),
                "the topic was deleted and made anew; it is read from its beginning"
            );
            // Without a time to wait it returns at once.
            if let Err(error) = client.seek(&part.topic, part.number, Offset::Beginning, Duration::ZERO) {
                tracing::error!(
                    group = group.id,
                    partition = part.name(),
                    %error,
                    "a partition that was made anew can't be read from its beginning; restart this program"
                );
            }
        }
        drop(state);
        group.work.notify_one();
        group.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g12_a_topic_that_was_made_anew_is_read_from_the_log() {
        let line = "[thrd:main]: Topic t1.orders changed id from ihUUTZJFSd2bASTnKmUA2A to j5lU3cyeTd6Zpp7WXbKSEw";
        assert_eq!(topic(line), Some("t1.orders"));
        let first = "[thrd:main]: Topic t1.orders changed id from AAAAAAAAAAAAAAAAAAAAAA to j5lU3cyeTd6Zpp7WXbKSEw";
        assert_eq!(topic(first), None);
        assert_eq!(topic("[thrd:main]: Topic t1.orders [0] Leader 1 Epoch 0"), None);
        let line =
            "[thrd:main]: Topic t1.orders does not exist, allowing 29796ms for metadata propagation before marking";
        assert_eq!((gone(line), gone(first)), (Some("t1.orders"), None));
    }
}
