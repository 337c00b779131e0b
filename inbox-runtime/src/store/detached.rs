//! The store of handlers without a transaction: its sessions hold nothing.

use std::sync::Arc;

use super::{
    AbandonError, Claim, ClaimError, Claimed, Connect, ConnectError, FaultClass, FinishError, NewOutboxMessage, NextTx,
    PublishError, Records, Session, Store, StoreError, StoreSettings,
};
use crate::outcome::DatabaseFault;

/// The store of handlers without a transaction. Their attempts and dead letters are in the tables of another store.
#[derive(Clone, Debug)]
pub struct Detached {
    records: Arc<dyn Records>,
}

impl Detached {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records }
    }
}

impl Connect for Detached {
    const NAME: &'static str = "no transaction";
    const VARIABLE: &'static str = "DATABASE_URL";
    const SCHEMES: &'static [&'static str] = &[];
    const EXAMPLE_URL: &'static str = "sqlite://app.db";
    const TRANSACTIONAL: bool = false;

    fn from_url(_url: &str, _settings: StoreSettings) -> Result<Self, ConnectError> {
        Err(ConnectError::Url(
            "a handler without a transaction has no database of its own".into(),
        ))
    }
}

impl Store for Detached {
    type Conn = ();
    type Session = DetachedSession;

    async fn session(&self) -> Result<DetachedSession, StoreError> {
        Ok(DetachedSession(()))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.records.probe().await
    }

    fn records(&self) -> Arc<dyn Records> {
        self.records.clone()
    }

    async fn claim_on(_conn: &mut (), _claim: &Claim<'_>) -> Result<Claimed, ClaimError> {
        Err(ClaimError::NoTransaction)
    }

    async fn publish_on(_conn: &mut (), _message: &NewOutboxMessage) -> Result<(), PublishError> {
        Err(PublishError::NoTransaction)
    }

    async fn cancel_on(_conn: &mut (), _message_id: &str) -> Result<u64, PublishError> {
        Err(PublishError::NoTransaction)
    }

    /// There is no transaction of ours that a code could be about.
    fn classify(&self, fault: &DatabaseFault) -> FaultClass {
        match fault {
            DatabaseFault::Connection => FaultClass::Suspect,
            DatabaseFault::Answer { .. } => FaultClass::Handler,
        }
    }
}

/// A session without a transaction.
#[derive(Debug)]
pub struct DetachedSession(());

impl Session for DetachedSession {
    type Conn = ();

    async fn probe(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn begin(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Claimed>, StoreError> {
        Ok(vec![Claimed::Fresh; claims.len()])
    }

    fn conn(&mut self) -> &mut () {
        &mut self.0
    }

    /// Its handlers can't publish: an `Outbox` is refused when they are compiled.
    async fn finish(&mut self, _outbox: &[NewOutboxMessage], _next: NextTx<'_>) -> Result<(), FinishError> {
        Ok(())
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        Ok(())
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn release(self) {}
}
