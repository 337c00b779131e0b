//! Fetched records, and the slot of a partition that holds the one being handled.

use std::time::Instant;

use crate::delivery::Delivery;

/// A record that was fetched from a partition.
#[derive(Clone, Debug)]
pub(super) struct FetchedRecord {
    /// Unique within one assignment of the partition. Offsets are not: they restart when the topic is recreated.
    pub(super) serial: u64,
    /// The incarnation of the partition that the record belongs to, see `CommitProgress`.
    pub(super) incarnation: u32,
    pub(super) offset: i64,
    pub(super) delivery: Delivery,
}

/// What a partition has delivered and not settled. One record at a time is handled, so that the partition keeps its
/// order.
#[derive(Debug)]
pub(super) enum Slot {
    /// The next record can be delivered.
    Free,
    /// One record is being handled. A copy stays here in case it is nakked. Its worker may have prefetched the next
    /// one.
    InFlight {
        record: FetchedRecord,
        prefetched: Option<FetchedRecord>,
    },
    /// A nakked record is redelivered at `until`, by the back-off clock.
    Backoff { record: FetchedRecord, until: Instant },
}
