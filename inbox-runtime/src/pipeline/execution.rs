//! The execution of one delivery by one pipeline: what its steps share.

use super::{job::Job, state::Pipeline};
use crate::{
    handler::{AckStrategy, HandlerMeta},
    store::{AttemptKey, Claim, Fingerprint, Session, Store, StoreError},
};

/// The execution of one delivery by one pipeline. Each step is a method, in the file of that step.
pub(super) struct Execution<'a, S: Store> {
    pub(super) pipeline: &'a Pipeline<S>,
    pub(super) job: &'a mut Job,
    pub(super) key: AttemptKey,
    /// `None` if the message has no usable id.
    pub(super) id: Option<String>,
}

impl<S: Store> Execution<'_, S> {
    pub(super) fn meta(&self) -> &HandlerMeta {
        &self.pipeline.meta
    }

    pub(super) fn claims(&self) -> bool {
        self.meta().ack == AckStrategy::ExactlyOnce
    }

    pub(super) fn is_at_most_once(&self) -> bool {
        self.meta().ack == AckStrategy::AtMostOnce
    }

    pub(super) fn claim(&self) -> Claim<'_> {
        Claim {
            group: self.meta().group,
            message_id: self.id.as_deref().unwrap_or(&self.job.delivery.position),
            fingerprint: self.fingerprint(),
        }
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        let delivery = &self.job.delivery;
        Fingerprint::of(&delivery.subject, delivery.payload.as_deref())
    }

    /// The worker's session, or a new one: never a second connection beside it.
    pub(super) async fn live(&self, session: Option<S::Session>) -> Result<S::Session, StoreError> {
        match session {
            Some(live) => Ok(live),
            None => self.pipeline.store.session().await,
        }
    }
}

/// Releases a worker's session, so that nobody waits for others while it holds a connection.
pub(super) async fn release<S: Session>(session: &mut Option<S>) {
    if let Some(session) = session.take() {
        session.release().await;
    }
}
