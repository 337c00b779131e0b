//! What a worker goes on to from one message's commit: the next one in the queue, or the one behind it at the broker.

use super::{
    Decoded, Job, Pipeline, Upcoming,
    queue::{Queue, Queued},
};
use crate::{
    broker::DynLease,
    store::{NextTx, Store},
};

/// The message that was taken in hand while the one before it was being committed.
pub(super) struct NextInHand<'a, S: Store> {
    pub(super) pipeline: &'a Pipeline<S>,
    pub(super) queue: &'a Queue,
    /// The lease of the one before it.
    pub(super) current: Option<DynLease>,
    pub(super) message: Option<InHand<S>>,
}

pub(super) struct InHand<S: Store> {
    pub(super) queued: Queued,
    pub(super) decoded: Option<Decoded<S>>,
    /// It may be handled only when the one before it is acknowledged.
    follows: bool,
}

impl<S: Store> NextInHand<'_, S> {
    /// The first in the queue, or what the broker lets nobody else have yet.
    fn find(&self) -> Option<InHand<S>> {
        let (queued, follows) = match self.queue.try_pop() {
            Some(queued) => (queued, false),
            None => (self.successor()?, true),
        };
        let decoded = self.pipeline.decode_ahead(&queued.job);
        Some(InHand {
            queued,
            decoded,
            follows,
        })
    }

    fn successor(&self) -> Option<Queued> {
        let (delivery, lease) = self.current.as_ref()?.successor()?;
        Some(Queued::new(&self.pipeline.in_flight, Job::new(delivery, lease), None))
    }

    pub(super) fn follows(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.follows)
    }

    /// The one before it is not acknowledged: a successor waits behind it, at the broker.
    pub(super) fn forget_successor(&mut self) {
        self.message.take_if(|message| message.follows);
    }
}

impl<S: Store> Upcoming for NextInHand<'_, S> {
    fn take(&mut self) -> NextTx<'_> {
        if self.message.is_none() {
            self.message = self.find();
        }
        match &self.message {
            None => NextTx::None,
            Some(InHand { decoded: None, .. }) => NextTx::Begin,
            Some(InHand {
                decoded: Some(decoded), ..
            }) => NextTx::Claim(decoded.claim(self.pipeline.meta.group)),
        }
    }
}
