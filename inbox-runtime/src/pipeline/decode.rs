//! The message's id and the handler's arguments, made from a delivery.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{job::Job, rejection::RejectionText, solo_gate::GatePass, state::Pipeline};
use crate::{
    contain::contain,
    delivery::Delivery,
    extract::{Collector, DeliveryContext, Meta},
    handler::{AckStrategy, IdSource},
    identity,
    invocation::Invocation,
    outcome::HandlerError,
    store::{AttemptKey, Claim, Fingerprint, Store},
};

/// A message that is decoded before its turn, because its transaction begins in the commit of the one before it.
pub(crate) struct Decoded<S: Store> {
    pub(super) id: String,
    fingerprint: Fingerprint,
    pub(super) invocation: Invocation<S>,
    /// Held from then on, so that it waits for nobody with an open transaction.
    pub(super) pass: GatePass,
}

impl<S: Store> Decoded<S> {
    pub(crate) fn claim(&self, group: &'static str) -> Claim<'_> {
        Claim {
            group,
            message_id: &self.id,
            fingerprint: self.fingerprint,
        }
    }
}

impl<S: Store> Pipeline<S> {
    /// Decodes a message before its turn. `None` if its transaction won't begin with a claim, or if anything is wrong with
    /// it, which shows when it is executed.
    pub(crate) fn decode_early(&self, job: &Job) -> Option<Decoded<S>> {
        let delivery = &job.delivery;
        if self.meta.ack != AckStrategy::ExactlyOnce || delivery.redelivered {
            return None;
        }
        let pass = self.gate.try_enter(self.meta.timeout)?;
        let id = self.identify(delivery).ok()?;
        let invocation = self.decode(delivery, &id).ok()?.ok()?;
        let fingerprint = Fingerprint::of(&delivery.subject, delivery.payload.as_deref());
        Some(Decoded {
            id,
            fingerprint,
            invocation,
            pass,
        })
    }

    /// The message's id.
    pub(super) fn identify(&self, delivery: &Delivery) -> Result<String, RejectionText> {
        let found = identity::of(delivery, self.meta.id).map_err(RejectionText::from)?;
        self.warn_positional(found.positional);
        Ok(found.id)
    }

    /// Makes the arguments. The outer error is a panic of an extractor, which counts as an attempt.
    pub(super) fn decode(
        &self,
        delivery: &Delivery,
        id: &str,
    ) -> Result<Result<Invocation<S>, RejectionText>, HandlerError> {
        let meta = Meta::new(self.meta.group, id.to_owned(), delivery);
        let collector = Collector::new();
        let context = DeliveryContext::of_call(delivery, &meta, &self.states, &collector);
        let decoded = contain(|| self.decode.decode(&context));
        decoded
            .map(|decoded| match decoded {
                Ok(invocation) => Ok(invocation.collecting(collector)),
                Err(rejection) => Err(RejectionText::from(rejection)),
            })
            .map_err(|panic| HandlerError::from(format!("an argument panicked: {panic}")))
    }

    /// The key under which the message's attempts are counted.
    pub(super) fn attempt_key(&self, job: &Job, id: Option<&str>) -> AttemptKey {
        if let Some(replay) = &job.replay {
            return replay.key.clone();
        }
        let delivery = &job.delivery;
        AttemptKey {
            group: self.meta.group.to_owned(),
            handler: self.meta.name.to_owned(),
            position: delivery.position.clone(),
            message_id: id.map(str::to_owned),
            fingerprint: Fingerprint::of(&delivery.subject, delivery.payload.as_deref()),
        }
    }

    /// Warns once in a process that a message which the producer sends twice can't be told from two messages.
    fn warn_positional(&self, positional: bool) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if positional && self.meta.id == IdSource::Auto && !WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                group = self.meta.group,
                subject = self.meta.subject,
                "a message has no id header, so its position in the broker is its id: redeliveries are recognised, but a \
                 message that its producer sends twice is not; let the producer set `message_id`, or write \
                 `id = \"position\"` if that is meant"
            );
        }
    }
}
