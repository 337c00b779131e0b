//! A store that breaks one rule is found out: SQLite's, with one answer changed.

use std::{marker::PhantomData, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use inbox_runtime::{
    ClaimError, Claimed, ConnectError, PublishError, StoreError, StoreSettings,
    sqlx::SqliteConnection,
    store::{
        AbandonError, Claim, Connect, DatabaseFault, FaultClass, FinishError, NewOutboxMessage, NextTx, Records,
        Session, Store, StoreOf,
    },
};
use inbox_tests::SqliteFile;

use super::store::conforms;

type Right = StoreOf<SqliteConnection>;

/// The answer that is changed.
trait Mutation: Clone + Send + Sync + 'static {
    /// What a claim is said to have found.
    fn claimed(claimed: Claimed) -> Claimed {
        claimed
    }

    /// What is said to have become of a commit.
    fn finished(finished: Result<(), FinishError>) -> Result<(), FinishError> {
        finished
    }

    /// Whether a rollback commits.
    const COMMITS: bool = false;
}

#[derive(Clone)]
struct Mutant<M>(Right, PhantomData<M>);

struct MutantSession<M>(<Right as Store>::Session, PhantomData<M>);

impl<M: Mutation> Connect for Mutant<M> {
    const NAME: &'static str = Right::NAME;
    const VARIABLE: &'static str = Right::VARIABLE;
    const SCHEMES: &'static [&'static str] = Right::SCHEMES;
    const EXAMPLE_URL: &'static str = Right::EXAMPLE_URL;
    const TRANSACTIONAL: bool = true;

    fn from_url(url: &str, settings: StoreSettings) -> Result<Self, ConnectError> {
        Ok(Self(Right::from_url(url, settings)?, PhantomData))
    }
}

impl<M: Mutation> Store for Mutant<M> {
    type Conn = SqliteConnection;
    type Session = MutantSession<M>;

    async fn session(&self) -> Result<MutantSession<M>, StoreError> {
        Ok(MutantSession(self.0.session().await?, PhantomData))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.0.probe().await
    }

    fn records(&self) -> Arc<dyn Records> {
        self.0.records()
    }

    async fn claim_on(conn: &mut SqliteConnection, claim: &Claim<'_>) -> Result<Claimed, ClaimError> {
        Right::claim_on(conn, claim).await
    }

    async fn publish_on(conn: &mut SqliteConnection, message: &NewOutboxMessage) -> Result<(), PublishError> {
        Right::publish_on(conn, message).await
    }

    async fn cancel_on(conn: &mut SqliteConnection, message_id: &str) -> Result<u64, PublishError> {
        Right::cancel_on(conn, message_id).await
    }

    fn classify(&self, fault: &DatabaseFault) -> FaultClass {
        self.0.classify(fault)
    }
}

impl<M: Mutation> Session for MutantSession<M> {
    type Conn = SqliteConnection;

    async fn probe(&mut self) -> Result<(), StoreError> {
        self.0.probe().await
    }

    async fn begin(&mut self, claims: &[Claim<'_>]) -> Result<Vec<Claimed>, StoreError> {
        Ok(self.0.begin(claims).await?.into_iter().map(M::claimed).collect())
    }

    fn conn(&mut self) -> &mut SqliteConnection {
        self.0.conn()
    }

    async fn finish(&mut self, outbox: &[NewOutboxMessage], next: NextTx<'_>) -> Result<(), FinishError> {
        M::finished(self.0.finish(outbox, next).await)
    }

    async fn abandon(&mut self) -> Result<(), AbandonError> {
        if M::COMMITS {
            let _ = self.0.finish(&[], NextTx::None).await;
            return Ok(());
        }
        self.0.abandon().await
    }

    async fn discard(&mut self) -> Result<(), StoreError> {
        self.0.discard().await
    }

    async fn release(self) {
        self.0.release().await;
    }
}

/// Asserts that a store with this answer is found out by the rule with these words.
async fn is_found_out<M: Mutation>(rule: &str) {
    let checked = AssertUnwindSafe(conforms::<SqliteFile, Mutant<M>>())
        .catch_unwind()
        .await;
    let panic = checked.expect_err("the store breaks a rule");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains(rule), "{text}");
}

#[derive(Clone)]
struct RollbackCommits;
impl Mutation for RollbackCommits {
    const COMMITS: bool = true;
}

#[derive(Clone)]
struct DuplicatesAreFresh;
impl Mutation for DuplicatesAreFresh {
    fn claimed(_claimed: Claimed) -> Claimed {
        Claimed::Fresh
    }
}

#[derive(Clone)]
struct BrokenIsCommitted;
impl Mutation for BrokenIsCommitted {
    fn finished(_finished: Result<(), FinishError>) -> Result<(), FinishError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_rollback_that_commits() {
    is_found_out::<RollbackCommits>("a rollback keeps neither").await;
}

#[tokio::test]
async fn a_duplicate_that_is_said_to_be_fresh() {
    is_found_out::<DuplicatesAreFresh>("a message that was handled is a duplicate").await;
}

#[tokio::test]
async fn a_commit_that_is_confirmed_whatever_became_of_it() {
    is_found_out::<BrokenIsCommitted>("a transaction that the handler ended").await;
}
