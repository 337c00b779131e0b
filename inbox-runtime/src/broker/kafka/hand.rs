//! A partition's name, a record of it, and which of its records are out.

use std::{sync::Arc, time::Instant};

use crate::delivery::Delivery;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
}

impl Part {
    pub(super) fn new(topic: &str, number: i32) -> Self {
        Self {
            topic: topic.into(),
            number,
        }
    }

    /// Its name in texts.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.topic, self.number)
    }
}

/// A record with its offset.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Tells it from every other record that was read in the same assignment: an offset may come again.
    pub(super) serial: u64,
    /// The incarnation of the partition that it is a record of.
    pub(super) incarnation: u32,
    pub(super) offset: i64,
    pub(super) delivery: Delivery,
}

/// What is out of a partition: one record, so that each follows the one before it.
#[derive(Debug)]
pub(super) enum Hand {
    /// The next record may be handed out.
    Empty,
    /// One is being handled. It stays here, in case it is given back. Whoever handles it may have the next one too, to go on
    /// with when this one is done.
    Out { record: Record, behind: Option<Record> },
    /// One was given back and waits.
    Back { record: Record, until: Instant },
}
