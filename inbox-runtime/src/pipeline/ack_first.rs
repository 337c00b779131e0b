//! The acknowledgement before the handler, under at_most_once.

use super::{
    disposition::End,
    execution::{Execution, release},
};
use crate::{
    broker::BrokerError,
    error_chain::text,
    failpoint::failpoint,
    store::{Session, Store, StoreError},
};

impl<S: Store> Execution<'_, S> {
    /// Acknowledges the message, once a probe has shown that the database works: an outage would discard the backlog. The
    /// error is the message's end in place of that.
    pub(super) async fn ack_first(&self, session: &mut Option<S::Session>) -> Result<(), End> {
        match self.probed(session.take()).await {
            Ok(live) => *session = Some(live),
            Err(error @ StoreError::Locked(_)) => return Err(End::Busy(text(&error))),
            Err(error) => return Err(End::StepFailed(text(&error))),
        }
        if self.job.is_replay() {
            // Its acknowledgement is written to the database, where the session may hold the only right to write.
            release(session).await;
        }
        self.job.begin();
        failpoint!("before_ack");
        match self.job.lease.ack_confirmed().await {
            Ok(()) => {}
            Err(error @ BrokerError::LeaseLost { .. }) => return Err(End::LeaseLostAtAck(text(&error))),
            Err(error) => {
                let error = text(&error);
                self.pipeline.count_ack(Some(&error));
                // Others may need its connection while the broker is waited for.
                release(session).await;
                return Err(End::AckFailed(error));
            }
        }
        self.pipeline.count_ack(None);
        failpoint!("after_ack");
        Ok(())
    }

    /// A session that could begin a transaction now.
    async fn probed(&self, session: Option<S::Session>) -> Result<S::Session, StoreError> {
        let mut live = self.live(session).await?;
        live.probe().await?;
        Ok(live)
    }
}
