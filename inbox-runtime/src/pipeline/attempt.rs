//! One transaction: begin, claim, handle, seal, commit.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use super::{Case, Next, panic_text, text};
use crate::{
    bound::Bound,
    failpoint::failpoint,
    outcome::{Handled, HandlerError},
    store::{
        AbandonError, Claim, Claimed, DatabaseFaultRef, FaultClass, Fingerprint, FinishError, Following, Session,
        Store, StoreError,
    },
};

/// How one transaction ended.
pub(super) enum Attempt {
    Committed(Handled),
    Duplicate(Fingerprint),
    Failed(HandlerError),
    /// The handler ended the transaction itself.
    Broken(String),
    Locked(String),
    /// The database can't store the message's own values.
    Unstorable(String),
    /// The database asks for a fresh transaction.
    Again(String),
    /// The same, but when fresh ones don't help it is the handler's failure.
    Stale(HandlerError),
    Unavailable(String),
}

impl From<StoreError> for Attempt {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked(_) => Self::Locked(text(&error)),
            StoreError::Message(_) => Self::Unstorable(text(&error)),
            StoreError::Again(_) => Self::Again(text(&error)),
            StoreError::Unavailable(_) => Self::Unavailable(text(&error)),
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
        let (attempt, usable) = match handled {
            Ok(handled) => commit(&mut live, handled, next.take()).await,
            Err(error) => self.roll_back(&mut live, error).await,
        };
        if usable {
            *session = Some(live);
        }
        attempt
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
        // The future is made, polled and dropped inside, so that a panic in a destructor is caught as well.
        let contained = AssertUnwindSafe(async move { tokio::time::timeout(timeout, bound.call(conn)).await });
        match contained.catch_unwind().await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => {
                let limit = humantime::format_duration(timeout);
                Err(HandlerError::from(format!(
                    "the handler took longer than its timeout of {limit}"
                )))
            }
            Err(panic) => Err(HandlerError::from(format!(
                "the handler panicked: {}",
                panic_text(&*panic)
            ))),
        }
    }

    /// Rolls back after an error of the handler, which also tells whether the connection lives. The flag says whether the
    /// session can be used again.
    async fn roll_back(&self, session: &mut S::Session, error: HandlerError) -> (Attempt, bool) {
        match session.abandon().await {
            Ok(()) => {}
            Err(AbandonError::Broken(how)) => {
                return (
                    Attempt::Broken(format!("{how}; then the handler failed: {}", error.report())),
                    false,
                );
            }
            Err(AbandonError::Lost(lost)) => {
                return (
                    Attempt::Unavailable(format!("{}; the rollback: {}", error.report(), text(&lost))),
                    false,
                );
            }
        }
        let class = error
            .fault()
            .map(|fault| self.pipeline.store.classify(&DatabaseFaultRef(fault)));
        match class {
            None | Some(FaultClass::Handler) => (Attempt::Failed(error), true),
            Some(FaultClass::Again) => (Attempt::Again(error.report()), true),
            Some(FaultClass::Stale) => (Attempt::Stale(error), false),
            Some(FaultClass::Unavailable) => (Attempt::Unavailable(error.report()), false),
        }
    }
}

/// Seals and commits. The flag says whether the session can be used again.
async fn commit<S: Session>(session: &mut S, handled: Handled, following: Following<'_>) -> (Attempt, bool) {
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
        Err(FinishError::Again(error)) => (Attempt::Again(text(&error)), false),
        Err(FinishError::Unknown(error)) => (
            Attempt::Unavailable(format!("the outcome of the commit is unknown: {}", text(&error))),
            false,
        ),
    }
}
