//! A position that the broker has given twice: a stream or topic was made anew, or restored from an older copy.

use super::Case;
use crate::{
    handler::IdSource,
    identity,
    store::{Fingerprint, Store},
};

impl<S: Store> Case<'_, S> {
    /// Whether the message that was handled under the id of this one is another message. `kept` is its fingerprint.
    ///
    /// A producer's id says which message it is, whatever the payload. A position doesn't: a broker gives it again. If this
    /// returns true the message has another id from now on, which it gets at each redelivery, and is asked for under that.
    pub(super) fn is_another(&mut self, kept: Fingerprint) -> bool {
        let delivery = &self.job.delivery;
        let positional = matches!(self.meta().id, IdSource::Auto | IdSource::Position)
            && self.id.as_deref() == Some(delivery.position.as_str());
        let ours = self.claim().fingerprint;
        if !positional || kept.same(ours) {
            return false;
        }
        let id = format!("{}~{:016x}", delivery.position, ours.to_i64());
        if identity::check(&id).is_err() {
            return false;
        }
        tracing::warn!(
            id,
            "the broker has given the position of a message that was handled to another message; that one is handled under \
             an id of its own"
        );
        if self.job.replay.is_none() {
            self.key.message_id = Some(id.clone());
        }
        self.id = Some(id);
        true
    }
}
