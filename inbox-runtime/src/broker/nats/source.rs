//! The state of a source. `lifecycle` binds it to its consumer, `receive` handles messages, `pull` returns deliveries.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    binding::Binding,
    durable::{Checkpoint, Durable},
    jetstream::JetStream,
    lease::NatsLease,
};
use crate::{
    broker::{SourceStatus, Subscription},
    delivery::Delivery,
};

/// The deliveries of one subscription to a JetStream stream.
///
/// Dropped, it naks what it had received and not returned.
#[derive(Debug)]
pub struct NatsSource {
    pub(super) jetstream: Arc<JetStream>,
    pub(super) subscription: Subscription,
    /// The name of the durable.
    pub(super) name: String,
    pub(super) status: SourceStatus,
    /// `None` while the consumer has to be found or created.
    pub(super) binding: Option<Binding>,
    /// The consumer that was lost, until it is known what replaced it.
    pub(super) previous: Option<Arc<Durable>>,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) ack_wait: Duration,
    /// How often in a row binding failed or the consumer was lost.
    pub(super) failures: u32,
    /// When to bind again.
    pub(super) next_attempt: Instant,
    /// Why no messages come, as last logged.
    pub(super) blocked_by: Option<String>,
    /// Received and not returned yet.
    pub(super) ready: VecDeque<(Delivery, NatsLease)>,
    /// The number of delete markers that were acknowledged without a handler.
    pub(super) skipped_markers: u64,
    pub(super) closed: bool,
}

impl NatsSource {
    pub(super) fn new(jetstream: Arc<JetStream>, subscription: Subscription, name: String) -> Self {
        Self {
            ack_wait: subscription.ack_wait,
            jetstream,
            subscription,
            name,
            status: SourceStatus::default(),
            binding: None,
            previous: None,
            checkpoint: None,
            failures: 0,
            next_attempt: Instant::now(),
            blocked_by: None,
            ready: VecDeque::new(),
            skipped_markers: 0,
            closed: false,
        }
    }

    /// The consumer that it is bound to.
    pub(super) fn durable(&self) -> Option<&Durable> {
        self.binding.as_ref().map(|binding| &*binding.durable)
    }
}
