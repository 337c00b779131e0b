//! One transaction: begin, claim, handle, seal, commit.

use super::{disposition::TxOutcome, execution::Execution, lookahead::Lookahead};
use crate::{
    contain::Contained,
    error_chain::text,
    extract::Collector,
    failpoint::failpoint,
    invocation::Invocation,
    outbox_wake,
    outcome::{Handled, HandlerError, RetryDecision},
    outgoing::NewOutboxMessage,
    store::{AbandonError, Claimed, FaultClass, FinishError, NextTx, Session, Store, faults::classify},
    telemetry,
};

impl<S: Store> Execution<'_, S> {
    /// One transaction: begin, claim, handle, seal, commit. The session is left where it can be used again.
    pub(super) async fn transaction(
        &self,
        session: &mut Option<S::Session>,
        mut invocation: Invocation<S>,
        lookahead: &mut dyn Lookahead,
    ) -> TxOutcome {
        let mut live = match self.live(session.take()).await {
            Ok(live) => live,
            Err(error) => return error.into(),
        };
        let claim = self.claims().then(|| self.claim());
        match live.begin(claim.as_slice()).await {
            Ok(claimed) => {
                if let Some(Claimed::Duplicate(fingerprint)) = claimed.first() {
                    if live.discard().await.is_ok() {
                        *session = Some(live);
                    }
                    return TxOutcome::Duplicate(*fingerprint);
                }
            }
            Err(error) => return error.into(),
        }
        self.job.begin();
        let _open = S::TRANSACTIONAL.then(|| self.pipeline.status.open.begin());
        self.pipeline.instruments.attempt();
        let collector = invocation.take_collector();
        let handled = self.handle(live.conn(), invocation).await;
        failpoint!("before_seal");
        let completed = handled.and_then(|handled| Ok((handled, self.outgoing(&collector)?)));
        let next = self.next_tx(completed.is_ok(), lookahead);
        // After a prefetch, which decodes the next message: that is code of the application, which may block its thread too.
        self.wait_if_stopped().await;
        let (outcome, is_usable) = match completed {
            Ok((handled, outbox)) => seal_and_commit(&mut live, handled, &outbox, next).await,
            Err(error) => self.roll_back(&mut live, error).await,
        };
        if is_usable {
            *session = Some(live);
        }
        outcome
    }

    /// Runs the handler. A panic and a timeout are errors of it.
    async fn handle(&self, conn: &mut S::Conn, invocation: Invocation<S>) -> Result<Handled, HandlerError> {
        let timeout = self.meta().timeout;
        let handler = Contained::new("the future of a handler", invocation.call(conn));
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

    /// What the handler has published, as it is written as the last statement of its transaction. The error is the handler's.
    fn outgoing(&self, collector: &Collector) -> Result<Vec<NewOutboxMessage>, HandlerError> {
        let mut messages = collector.take().map_err(HandlerError::from)?;
        for NewOutboxMessage { message, .. } in &mut messages {
            telemetry::inject(&mut message.headers);
            self.pipeline.broker.check(message).map_err(|problem| {
                let subject = message.subject.escape_debug();
                HandlerError::from(format!(
                    "the broker would not take a message for `{subject}`: {problem}"
                ))
            })?;
        }
        Ok(messages)
    }

    /// How the next transaction begins. The next message may be handled before this one is acknowledged only where this one is
    /// deduplicated if it is redelivered.
    fn next_tx<'l>(&self, succeeded: bool, lookahead: &'l mut dyn Lookahead) -> NextTx<'l> {
        if succeeded && self.claims() && !self.job.is_replay() {
            lookahead.prefetch()
        } else {
            NextTx::None
        }
    }

    /// Waits for ever if the inbox stopped while the handler blocked its thread. The future is dropped while it waits, so that
    /// nothing is committed, recorded or acknowledged after the inbox has reported that it has stopped.
    async fn wait_if_stopped(&self) {
        if self.pipeline.stopped.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    /// Rolls back after an error of the handler, which also tells whether the connection is alive. The flag says whether the
    /// session can be used again.
    async fn roll_back(&self, session: &mut S::Session, error: HandlerError) -> (TxOutcome, bool) {
        let class = error.fault().map(|fault| classify(&self.pipeline.store, fault));
        match session.abandon().await {
            Ok(()) => {}
            // SQLite rolls back by itself when the disk is full or fails.
            Err(AbandonError::RolledBack(_)) if class == Some(FaultClass::Suspect) => {
                return (TxOutcome::SuspectedOutage(error), false);
            }
            Err(AbandonError::Broken(how) | AbandonError::RolledBack(how)) => {
                let how = format!("{how}; then the handler failed: {}", error.report());
                return (TxOutcome::TxBroken(how), false);
            }
            // What the handler says of its own message needs no connection to be true, only one to be written down.
            Err(AbandonError::Lost(_)) if error.retry_decision() != RetryDecision::Backoff => {
                return (TxOutcome::SuspectedOutage(error), false);
            }
            Err(AbandonError::Lost(lost)) => {
                let why = format!("{}; the rollback: {lost}", error.report());
                return (TxOutcome::ConnectionLost(why), false);
            }
        }
        if error.retry_decision() != RetryDecision::Backoff {
            return (TxOutcome::Failed(error), true);
        }
        match class {
            None | Some(FaultClass::Handler) => (TxOutcome::Failed(error), true),
            Some(FaultClass::Retry) => (TxOutcome::RetryTx(error.report()), true),
            Some(FaultClass::Stale) => (TxOutcome::StaleConnection(error), false),
            Some(FaultClass::Deployment) => (TxOutcome::DeploymentFault(error), true),
            Some(FaultClass::Suspect) => (TxOutcome::SuspectedOutage(error), false),
        }
    }
}

/// Writes what was published, seals and commits. The flag says whether the session can be used again.
async fn seal_and_commit<S: Session>(
    session: &mut S,
    handled: Handled,
    outbox: &[NewOutboxMessage],
    next: NextTx<'_>,
) -> (TxOutcome, bool) {
    match session.finish(outbox, next).await {
        Ok(()) => {
            failpoint!("after_commit");
            if !outbox.is_empty() {
                outbox_wake::wake();
            }
            (TxOutcome::Committed(handled), true)
        }
        Err(FinishError::Broken(how)) => (TxOutcome::TxBroken(how), false),
        Err(FinishError::Refused(error)) => {
            let error = HandlerError::from(error);
            let refused = format!("the commit was refused: {}", error.report());
            (TxOutcome::Failed(HandlerError::from(refused)), false)
        }
        Err(FinishError::Retry(error)) => (TxOutcome::RetryTx(text(&error)), false),
        Err(FinishError::SessionMisused(how)) => (TxOutcome::Failed(HandlerError::from(how)), false),
        Err(FinishError::Lost(how)) => (TxOutcome::ConnectionLost(how), false),
    }
}
