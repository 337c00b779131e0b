//! The name of one partition of a topic.

use std::{fmt, sync::Arc};

/// One partition of a topic. Shown as `topic:partition`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TopicPartition {
    /// The full topic name, prefix included.
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
}

impl TopicPartition {
    pub(super) fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self {
            topic: topic.into(),
            partition,
        }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.topic, self.partition)
    }
}
