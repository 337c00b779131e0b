//! The life of a transaction: what is committed, what is not, and what a session can do next.

use super::{Bench, EFFECT, abandon, begin, claim, commit, fingerprint, finish};
use crate::store::{Claimed, NextTx, Session, Store};

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    pub(super) async fn a_commit_keeps_the_claim_and_the_effects(self) {
        let mut session = self.begun(Some("m1")).await;
        self.run(&mut session, EFFECT).await;
        assert!(!self.is_handled("m1").await, "nothing is handled before its commit");
        commit(&mut session).await;
        session.release().await;
        self.assert_committed("m1", true, "a commit keeps both").await;
    }

    pub(super) async fn a_rollback_keeps_nothing(self) {
        let mut session = self.begun(Some("m1")).await;
        self.run(&mut session, EFFECT).await;
        abandon(&mut session).await;
        session.release().await;
        self.assert_committed("m1", false, "a rollback keeps neither").await;
        let mut session = self.begun(Some("m1")).await;
        commit(&mut session).await;
        session.release().await;
        assert!(self.is_handled("m1").await, "what was rolled back can be handled");
    }

    pub(super) async fn a_dropped_transaction_is_rolled_back(self) {
        let mut session = self.begun(Some("m1")).await;
        self.run(&mut session, EFFECT).await;
        drop(session);
        let (mut session, claimed) = self.begun_patiently("m1").await;
        assert_eq!(claimed, Claimed::Fresh, "a transaction that is dropped is rolled back");
        abandon(&mut session).await;
        session.release().await;
        self.assert_committed("m1", false, "a transaction that is dropped keeps neither")
            .await;
    }

    pub(super) async fn a_session_runs_one_transaction_after_another(self) {
        let mut session = self.session().await;
        for round in 0..5 {
            let (committed, abandoned) = (format!("committed-{round}"), format!("abandoned-{round}"));
            assert_eq!(begin(&mut session, Some(&abandoned)).await, Claimed::Fresh);
            abandon(&mut session).await;
            assert_eq!(begin(&mut session, Some(&committed)).await, Claimed::Fresh);
            commit(&mut session).await;
            let duplicate = Claimed::Duplicate(fingerprint(&committed));
            let again = begin(&mut session, Some(&committed)).await;
            assert_eq!(again, duplicate, "a message that was handled is a duplicate");
            session
                .discard()
                .await
                .expect("the transaction of a duplicate can be discarded");
            assert_eq!(begin(&mut session, None).await, Claimed::Fresh);
            commit(&mut session).await;
            assert!(
                self.is_handled(&committed).await,
                "each transaction is committed by itself"
            );
            assert!(
                !self.is_handled(&abandoned).await,
                "each transaction is rolled back by itself"
            );
        }
        session.release().await;
    }

    pub(super) async fn a_transaction_that_was_begun_in_advance_is_one(self) {
        let mut session = self.begun(Some("m1")).await;
        finish(&mut session, NextTx::Claim(claim("m2"))).await;
        assert!(
            !self.is_handled("m2").await,
            "a claim in advance is not committed with the transaction before"
        );
        assert_eq!(
            begin(&mut session, Some("m2")).await,
            Claimed::Fresh,
            "a claim in advance is one"
        );
        self.run(&mut session, EFFECT).await;
        finish(&mut session, NextTx::Claim(claim("m1"))).await;
        let duplicate = Claimed::Duplicate(fingerprint("m1"));
        assert_eq!(
            begin(&mut session, Some("m1")).await,
            duplicate,
            "a claim in advance finds a duplicate"
        );
        session
            .discard()
            .await
            .expect("the transaction of a duplicate can be discarded");

        assert_eq!(begin(&mut session, Some("m3")).await, Claimed::Fresh);
        finish(&mut session, NextTx::Begin).await;
        assert_eq!(begin(&mut session, None).await, Claimed::Fresh);
        finish(&mut session, NextTx::Claim(claim("not-delivered"))).await;
        // The worker doesn't get that message any more.
        assert_eq!(begin(&mut session, Some("m4")).await, Claimed::Fresh);
        finish(&mut session, NextTx::Claim(claim("released"))).await;
        session.release().await;

        for id in ["not-delivered", "released"] {
            let (mut session, claimed) = self.begun_patiently(id).await;
            assert_eq!(
                claimed,
                Claimed::Fresh,
                "a claim in advance that nobody uses is rolled back: {id}"
            );
            abandon(&mut session).await;
            session.release().await;
        }
        for id in ["m1", "m2", "m3", "m4"] {
            assert!(self.is_handled(id).await, "{id} is committed");
        }
        assert_eq!(
            self.effects().await,
            1,
            "the effects of a transaction that was begun in advance are kept"
        );
    }
}
