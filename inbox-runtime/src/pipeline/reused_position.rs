//! A position that the broker has given to two messages: a stream or topic was recreated, or restored from an older copy.

use super::execution::Execution;
use crate::{
    handler::IdSource,
    message_id,
    store::{Fingerprint, Store},
};

impl<S: Store> Execution<'_, S> {
    /// Gives the message an id of its own if its id is its position, and another message was handled under it. `kept` is that
    /// message's fingerprint. Returns whether it did: the message must then be looked up under the new id, which it gets at
    /// each redelivery.
    ///
    /// A producer's id identifies a message, whatever its payload. A position doesn't: a broker may reuse it.
    pub(super) fn leave_reused_position(&mut self, kept: Fingerprint) -> bool {
        let position = &self.job.delivery.position;
        let is_positional = matches!(self.meta().id, IdSource::Auto | IdSource::Position)
            && self.id.as_deref() == Some(position.as_str());
        let ours = self.fingerprint();
        if !is_positional || kept.same(ours) {
            return false;
        }
        let id = format!("{position}~{:016x}", ours.to_i64());
        if message_id::check(&id).is_err() {
            return false;
        }
        tracing::warn!(
            id,
            "the broker has given the position of a message that was handled to another message; that one is handled under \
             an id of its own"
        );
        if !self.job.is_replay() {
            self.key.message_id = Some(id.clone());
        }
        self.id = Some(id);
        true
    }
}
