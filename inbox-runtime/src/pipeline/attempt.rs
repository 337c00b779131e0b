//! One transaction: begin, claim, handle, seal, commit.

use super::{Case, Next};
use crate::{
    contain::Contained,
    error_chain::text,
    failpoint::failpoint,
    invocation::Bound,
    outcome::{Handled, HandlerError, Verdict},
    store::{AbandonError, Claim, Claimed, FaultClass, Fingerprint, FinishError, NextTx, Session, Store, StoreError},
};

/// How one transaction ended. Whether it was the database's trouble or the message's is decided later, by a probe.
pub(super) enum Attempt {
    Committed(Handled),
    Duplicate(Fingerprint),
    /// The handler failed, and the database had no part in it.
    Failed(HandlerError),
    /// The handler ended the transaction itself.
    Broken(String),
    /// Somebody else holds what the claim needs.
    Locked(String),
    /// The database can't store the message's own values.
    Unstorable(String),
    /// The database asks for a fresh transaction.
    Again(String),
    /// The same, but when fresh ones don't help it is the handler's failure.
    Stale(HandlerError),
    /// What the handler needs isn't there.
    Missing(HandlerError),
    /// It may be an outage, though the handler's transaction was alive.
    Suspect(HandlerError),
    /// The connection was lost, or a step of ours failed.
    Lost(String),
}

impl From<StoreError> for Attempt {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked(_) => Self::Locked(text(&error)),
            StoreError::Message(_) => Self::Unstorable(text(&error)),
            StoreError::Retry(_) => Self::Again(text(&error)),
            StoreError::TablesMissing(_) | StoreError::Unavailable(_) => Self::Lost(text(&error)),
        }
    }
}

impl<S: Store> Case<'_, S> {
    /// One transaction: begin, claim, handle, seal, commit.
    pub(super) async fn attempt(&self, session: &mut Option<S::Session>, bound: Bound<S>, next: Next<'_>) -> Attempt {
        let mut live = match self.live(session.take()).await {
            Ok(live) => live,
            Err(error) => return error.into(),
        };
        let claim = self.claims().then(|| self.claim());
        match live.begin(claim.as_ref()).await {
            Ok(Claimed::Fresh) => {}
            Ok(Claimed::Duplicate(fingerprint)) => {
                if live.discard().await.is_ok() {
                    *session = Some(live);
                }
                return Attempt::Duplicate(fingerprint);
            }
            Err(error) => return error.into(),
        }
        self.job.begin();
        let _open = S::TRANSACTIONAL.then(|| self.pipeline.open.begin());
        self.pipeline.instruments.attempt();
        let handled = self.handle(live.conn(), bound).await;
        failpoint!("before_seal");
        // It decodes the next message, which is code of the application too.
        let following = if handled.is_ok() {
            self.following(next)
        } else {
            NextTx::None
        };
        self.not_left_behind().await;
        let (attempt, usable) = match handled {
            Ok(handled) => commit(&mut live, handled, following).await,
            Err(error) => self.roll_back(&mut live, error).await,
        };
        if usable {
            *session = Some(live);
        }
        attempt
    }

    /// What may begin in the commit of this message: the next one begins before this one is acknowledged only where this one
    /// is recognised if it is redelivered.
    fn following<'a>(&self, next: Next<'a>) -> NextTx<'a> {
        if self.claims() && self.job.replay.is_none() {
            next.take()
        } else {
            NextTx::None
        }
    }

    pub(super) fn claim(&self) -> Claim<'_> {
        let delivery = &self.job.delivery;
        Claim {
            group: self.meta().group,
            message_id: self.id.as_deref().unwrap_or(&delivery.position),
            fingerprint: Fingerprint::of(&delivery.subject, delivery.payload.as_deref()),
        }
    }

    /// Runs the handler: a panic and a timeout become errors of it.
    async fn handle(&self, conn: &mut S::Conn, bound: Bound<S>) -> Result<Handled, HandlerError> {
        let timeout = self.meta().timeout;
        let handler = Contained::new("the future of a handler", bound.call(conn));
        match tokio::time::timeout(timeout, handler).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(HandlerError::from(format!("the handler panicked: {panic}"))),
            Err(_) => {
                let limit = humantime::format_duration(timeout);
                Err(HandlerError::from(format!(
                    "the handler took longer than its timeout of {limit}"
                )))
            }
        }
    }

    /// Waits for ever if the inbox has stopped while the handler blocked its thread: the future is dropped where it waits,
    /// and nothing is committed, recorded or acknowledged after the inbox has said that it has stopped.
    async fn not_left_behind(&self) {
        if self.pipeline.stopped.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    /// Rolls back after an error of the handler, which also tells whether the connection lives. The flag says whether the
    /// session can be used again.
    async fn roll_back(&self, session: &mut S::Session, error: HandlerError) -> (Attempt, bool) {
        let class = error.fault().map(|fault| self.pipeline.store.classify(fault));
        match session.abandon().await {
            Ok(()) => {}
            // SQLite rolls back by itself when the disk is full or fails.
            Err(AbandonError::RolledBack(_)) if class == Some(FaultClass::Suspect) => {
                return (Attempt::Suspect(error), false);
            }
            Err(AbandonError::Broken(how) | AbandonError::RolledBack(how)) => {
                return (
                    Attempt::Broken(format!("{how}; then the handler failed: {}", error.report())),
                    false,
                );
            }
            // What the handler says of its own message needs no connection to be true, only one to be written down.
            Err(AbandonError::Lost(_)) if error.verdict() != Verdict::Retry => return (Attempt::Suspect(error), false),
            Err(AbandonError::Lost(lost)) => {
                return (
                    Attempt::Lost(format!("{}; the rollback: {lost}", error.report())),
                    false,
                );
            }
        }
        if error.verdict() != Verdict::Retry {
            return (Attempt::Failed(error), true);
        }
        match class {
            None | Some(FaultClass::Handler) => (Attempt::Failed(error), true),
            Some(FaultClass::Retry) => (Attempt::Again(error.report()), true),
            Some(FaultClass::Stale) => (Attempt::Stale(error), false),
            Some(FaultClass::Deployment) => (Attempt::Missing(error), true),
            Some(FaultClass::Suspect) => (Attempt::Suspect(error), false),
        }
    }
}

/// Seals and commits. The flag says whether the session can be used again.
async fn commit<S: Session>(session: &mut S, handled: Handled, following: NextTx<'_>) -> (Attempt, bool) {
    match session.finish(following).await {
        Ok(()) => {
            failpoint!("after_commit");
            (Attempt::Committed(handled), true)
        }
        Err(FinishError::Broken(how)) => (Attempt::Broken(how), false),
        Err(FinishError::Refused(error)) => {
            let error = HandlerError::from(error);
            (
                Attempt::Failed(HandlerError::from(format!(
                    "the commit was refused: {}",
                    error.report()
                ))),
                false,
            )
        }
        Err(FinishError::Retry(error)) => (Attempt::Again(text(&error)), false),
        Err(FinishError::SessionMisused(how)) => (Attempt::Failed(HandlerError::from(how)), false),
        Err(FinishError::Lost(how)) => (Attempt::Lost(how), false),
    }
}
