//! The claim of a message: by whom, against whom, and what tells two messages apart.

use std::pin::pin;

use tokio::time::timeout;

use super::{Bench, GROUP, QUIET, abandon, begin, claim, claim_one, commit, fingerprint};
use crate::store::{Claim, Claimed, Fingerprint, Session, Store};

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    pub(super) async fn a_duplicate_has_the_fingerprint_of_the_first(self) {
        let mut session = self.begun(Some("m1")).await;
        commit(&mut session).await;
        let other = Claim {
            fingerprint: fingerprint("another payload"),
            ..claim("m1")
        };
        for repetition in [claim("m1"), other] {
            let claimed = claim_one(&mut session, &repetition)
                .await
                .expect("a duplicate is answered");
            assert_eq!(
                claimed,
                Claimed::Duplicate(fingerprint("m1")),
                "a duplicate has the fingerprint of the message that was handled"
            );
            session
                .discard()
                .await
                .expect("the transaction of a duplicate can be discarded");
        }
        session.release().await;
        let handled = self
            .records
            .handled(GROUP, "m1")
            .await
            .expect("what is handled can be read");
        assert_eq!(
            handled,
            Some(fingerprint("m1")),
            "a message that was handled has its fingerprint"
        );
    }

    pub(super) async fn ids_are_compared_byte_by_byte_within_a_group(self) {
        let mut session = self.session().await;
        for id in ["m1", "M1", "m1 ", "m\u{301}", "ḿ"] {
            let claimed = begin(&mut session, Some(id)).await;
            assert_eq!(claimed, Claimed::Fresh, "ids are compared byte by byte: {id:?}");
            commit(&mut session).await;
        }
        for group in ["conformance-two", "Conformance"] {
            let other = Claim { group, ..claim("m1") };
            let claimed = claim_one(&mut session, &other).await.expect("a claim is answered");
            assert_eq!(claimed, Claimed::Fresh, "each group handles each message: {group}");
            commit(&mut session).await;
        }
        session.release().await;
    }

    pub(super) async fn a_claim_waits_for_the_other_transaction(self) {
        for (id, committed, expected) in [
            ("committed", true, Claimed::Duplicate(fingerprint("committed"))),
            ("rolled-back", false, Claimed::Fresh),
        ] {
            let first = self.begun(Some(id)).await;
            let (mut session, claimed) = self.begun_after(first, committed, id).await;
            assert_eq!(
                claimed, expected,
                "a claim is answered by what became of the other transaction"
            );
            if committed {
                let discarded = session.discard().await;
                discarded.expect("the transaction of a duplicate can be discarded");
            } else {
                abandon(&mut session).await;
            }
            session.release().await;
        }
    }

    /// A second claim of a message, which is begun before the first one's transaction ends.
    async fn begun_after(&self, mut first: S::Session, committed: bool, id: &str) -> (S::Session, Claimed) {
        let mut second = self.session().await;
        let claim = claim(id);
        let claimed = {
            let mut waiting = pin!(claim_one(&mut second, &claim));
            let early = timeout(QUIET, &mut waiting).await;
            // It may refuse to wait.
            assert!(
                !matches!(early, Ok(Ok(_))),
                "a claim that another transaction holds is answered when that ends: {early:?}"
            );
            if committed {
                commit(&mut first).await;
            } else {
                abandon(&mut first).await;
            }
            first.release().await;
            match early {
                Err(_) => waiting.await.ok(),
                Ok(_) => None,
            }
        };
        match claimed {
            Some(claimed) => (second, claimed),
            None => self.begun_patiently(id).await,
        }
    }

    pub(super) async fn a_claim_by_hand_is_one(self) {
        for (id, committed) in [("abandoned", false), ("committed", true)] {
            let mut session = self.begun(None).await;
            let by_hand = Claim {
                fingerprint: Fingerprint::UNKNOWN,
                ..claim(id)
            };
            for expected in [Claimed::Fresh, Claimed::Duplicate(Fingerprint::UNKNOWN)] {
                let claimed = S::claim_on(session.conn(), &by_hand).await;
                assert_eq!(claimed.expect("a claim by hand is answered"), expected, "{id}");
            }
            if committed {
                commit(&mut session).await;
            } else {
                abandon(&mut session).await;
            }
            session.release().await;
            assert_eq!(
                self.is_handled(id).await,
                committed,
                "a claim by hand is part of its transaction"
            );
        }
    }
}
