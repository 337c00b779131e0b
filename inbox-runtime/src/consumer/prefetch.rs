//! Prefetches a worker's next message: the first in the queue, or the one after the current one in its partition.

use super::queue::{Queue, Queued};
use crate::{
    broker::DynLease,
    pipeline::{Decoded, Job, Lookahead, Pipeline},
    store::{NextTx, Store},
};

/// Prefetches the next message of a worker while the current one is being committed.
pub(super) struct Prefetch<'a, S: Store> {
    pipeline: &'a Pipeline<S>,
    queue: &'a Queue,
    /// The lease of the current message.
    pub(super) current: Option<DynLease>,
    prefetched: Option<Prefetched<S>>,
}

struct Prefetched<S: Store> {
    queued: Queued,
    decoded: Option<Decoded<S>>,
    /// It comes after the current message in its partition, and may be handled only once that one is acknowledged.
    is_next_in_partition: bool,
}

impl<'a, S: Store> Prefetch<'a, S> {
    pub(super) const fn new(pipeline: &'a Pipeline<S>, queue: &'a Queue) -> Self {
        Self {
            pipeline,
            queue,
            current: None,
            prefetched: None,
        }
    }

    /// Takes the message that was prefetched, if one was.
    pub(super) fn take(&mut self) -> Option<(Queued, Option<Decoded<S>>)> {
        let prefetched = self.prefetched.take()?;
        Some((prefetched.queued, prefetched.decoded))
    }

    /// The first message in the queue, or the next in the partition, which no other worker can have.
    fn find(&self) -> Option<Prefetched<S>> {
        let (queued, is_next_in_partition) = match self.queue.try_recv() {
            Ok(queued) => (queued, false),
            Err(_) => (self.next_in_partition()?, true),
        };
        let decoded = self.pipeline.decode_early(&queued.job);
        Some(Prefetched {
            queued,
            decoded,
            is_next_in_partition,
        })
    }

    fn next_in_partition(&self) -> Option<Queued> {
        let (delivery, lease) = self.current.as_ref()?.next_in_partition()?;
        let job = Job::new(delivery, lease);
        Some(Queued::new(&self.pipeline.status.leases, job, None))
    }

    pub(super) fn has_next_in_partition(&self) -> bool {
        self.prefetched.as_ref().is_some_and(|next| next.is_next_in_partition)
    }

    /// The current message is not acknowledged: the next in its partition stays with the broker until it is.
    pub(super) fn drop_next_in_partition(&mut self) {
        self.prefetched.take_if(|next| next.is_next_in_partition);
    }
}

impl<S: Store> Lookahead for Prefetch<'_, S> {
    fn prefetch(&mut self) -> NextTx<'_> {
        if self.prefetched.is_none() {
            self.prefetched = self.find();
        }
        match &self.prefetched {
            None => NextTx::None,
            Some(Prefetched { decoded: None, .. }) => NextTx::Begin,
            Some(Prefetched {
                decoded: Some(decoded), ..
            }) => NextTx::Claim(decoded.claim(self.pipeline.meta.group)),
        }
    }
}
