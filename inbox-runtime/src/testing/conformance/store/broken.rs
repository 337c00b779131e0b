//! Transactions that their handler spoils: it ends them, or a statement of its own fails.

use super::{Bench, EFFECT, abandon, begin};
use crate::{
    outcome::HandlerError,
    store::{AbandonError, Claimed, FaultClass, FinishError, NextTx, Session, Store},
};

/// How a handler may end the transaction that it was lent.
const ENDINGS: [&[&str]; 4] = [&["ROLLBACK"], &["COMMIT"], &["ROLLBACK", "BEGIN"], &["COMMIT", "BEGIN"]];
/// No such table.
const MISSING: &str = "INSERT INTO conformance_missing (id) VALUES ('e1')";

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    pub(super) async fn a_transaction_that_the_handler_ended_is_broken(self) {
        for ending in ENDINGS {
            let mut session = self.ended("m1", ending).await;
            let finished = session.finish(&[], NextTx::None).await;
            assert!(
                matches!(finished, Err(FinishError::Broken(_))),
                "a transaction that the handler ended by {ending:?} is not committed: {finished:?}"
            );
            drop(session);
            self.assert_committed("m1", false, "a transaction that the handler ended keeps neither")
                .await;
            let mut session = self.ended("m1", ending).await;
            let abandoned = session.abandon().await;
            assert!(
                matches!(abandoned, Err(AbandonError::Broken(_) | AbandonError::RolledBack(_))),
                "a transaction that the handler ended by {ending:?} is noticed where it is rolled back: {abandoned:?}"
            );
            drop(session);
            self.assert_committed("m1", false, "a transaction that the handler ended keeps neither")
                .await;
        }
    }

    /// A transaction with an effect, which its handler has ended, or has tried to.
    async fn ended(&self, id: &str, ending: &[&'static str]) -> S::Session {
        let mut session = self.begun(Some(id)).await;
        self.run(&mut session, EFFECT).await;
        for &statement in ending {
            // The database may refuse it.
            let _ = self.try_run(&mut session, statement).await;
        }
        session
    }

    pub(super) async fn a_statement_that_failed_is_told_from_an_outage(self) {
        let mut session = self.session().await;
        for (statements, class) in [
            (&[MISSING][..], FaultClass::Deployment),
            // A duplicate key.
            (&[EFFECT, EFFECT], FaultClass::Handler),
            (&["THIS IS NO SQL"], FaultClass::Handler),
        ] {
            let claimed = begin(&mut session, Some("m1")).await;
            assert_eq!(claimed, Claimed::Fresh, "what was rolled back can be handled");
            let mut last = Ok(0);
            for &statement in statements {
                last = self.try_run(&mut session, statement).await;
            }
            let error = HandlerError::from(last.expect_err("the statement is refused"));
            let fault = error.fault().expect("it is an error of the database");
            assert_eq!(self.store.classify(fault), class, "{statements:?}: {}", error.report());
            abandon(&mut session).await;
        }
        session.release().await;
        self.assert_committed("m1", false, "a rollback after a statement that failed keeps neither")
            .await;
    }

    pub(super) async fn a_failed_statement_that_was_ignored_commits_all_or_nothing(self) {
        let mut session = self.begun(Some("m1")).await;
        self.run(&mut session, EFFECT).await;
        let failed = self.try_run(&mut session, MISSING).await;
        assert!(failed.is_err(), "there is no such table");
        let finished = session.finish(&[], NextTx::None).await;
        drop(session);
        self.assert_committed(
            "m1",
            finished.is_ok(),
            "a commit is confirmed if and only if it is made",
        )
        .await;
    }
}
