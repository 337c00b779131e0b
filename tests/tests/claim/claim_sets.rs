//! Several claims in one transaction, as a session makes them: the same on every database.

use std::{mem::discriminant, time::Duration};

use inbox_runtime::{
    Claimed, Fingerprint, IntoStore, MigrateMode, StoreSettings,
    store::{Claim, NextTx, Session, Store},
};
use inbox_tests::{TestDatabase, database_suite};

database_suite!(
    a_set_is_answered_claim_by_claim,
    a_set_that_is_rolled_back_leaves_nothing,
    a_set_with_a_locked_claim_fails_as_that_claim_does,
    sets_in_any_order_do_not_deadlock,
);

type StoreOf<D> = <<D as TestDatabase>::Pool as IntoStore>::Store;

async fn store<D: TestDatabase>(lock_wait: Duration) -> (D, StoreOf<D>) {
    let database = D::fresh().await;
    let mut settings = StoreSettings::default();
    settings.lock_wait = lock_wait;
    let store = database.pool().into_store(settings);
    store.records().migrate(MigrateMode::Auto).await.expect("the tables");
    (database, store)
}

fn claim(message_id: &str, bits: i64) -> Claim<'_> {
    Claim {
        group: "billing",
        message_id,
        fingerprint: Fingerprint::from_i64(bits),
    }
}

fn duplicate(bits: i64) -> Claimed {
    Claimed::Duplicate(Fingerprint::from_i64(bits))
}

async fn rows<D: TestDatabase>(database: &D) -> i64 {
    database.number("SELECT count(*) FROM inbox_events").await
}

async fn a_set_is_answered_claim_by_claim<D: TestDatabase>() {
    let (database, store) = store::<D>(Duration::from_secs(1)).await;
    let mut session = store.session().await.expect("a session");
    let answers = session.begin(&[]).await.expect("begun");
    assert_eq!(answers[..], []);
    session.finish(&[], NextTx::None).await.expect("committed");
    let answers = session.begin(&[claim("b", 2), claim("a", 1)]).await.expect("claimed");
    assert_eq!(answers[..], [Claimed::Fresh, Claimed::Fresh]);
    session.finish(&[], NextTx::None).await.expect("committed");
    let mixed = [
        claim("c", 3),
        claim("a", 9),
        claim("c", 4),
        claim("a", 8),
        claim("b", 2),
    ];
    let answers = session.begin(&mixed).await.expect("claimed");
    assert_eq!(
        answers[..],
        [Claimed::Fresh, duplicate(1), duplicate(3), duplicate(1), duplicate(2)]
    );
    session.finish(&[], NextTx::None).await.expect("committed");
    let answers = session.begin(&[claim("b", 2), claim("a", 1)]).await.expect("claimed");
    assert_eq!(answers[..], [duplicate(2), duplicate(1)]);
    session.discard().await.expect("discarded");
    let answers = session.begin(&[claim("d", 4)]).await.expect("claimed");
    assert_eq!(answers[..], [Claimed::Fresh]);
    session.finish(&[], NextTx::None).await.expect("committed");
    session.release().await;
    assert_eq!(rows(&database).await, 4);
}

async fn a_set_that_is_rolled_back_leaves_nothing<D: TestDatabase>() {
    let (database, store) = store::<D>(Duration::from_secs(1)).await;
    let mut session = store.session().await.expect("a session");
    for _ in 0..2 {
        let answers = session.begin(&[claim("b", 2), claim("a", 1)]).await.expect("claimed");
        assert_eq!(answers[..], [Claimed::Fresh, Claimed::Fresh]);
        session.abandon().await.expect("rolled back");
    }
    session.release().await;
    assert_eq!(rows(&database).await, 0);
}

async fn a_set_with_a_locked_claim_fails_as_that_claim_does<D: TestDatabase>() {
    let (database, store) = store::<D>(Duration::from_millis(300)).await;
    let lock = database.lock_claim("billing", "b").await;
    let mut errors = Vec::new();
    for claims in [&[claim("b", 2)][..], &[claim("c", 3), claim("b", 2), claim("a", 1)]] {
        let mut session = store.session().await.expect("a session");
        errors.push(session.begin(claims).await.expect_err("it is locked"));
    }
    assert_eq!(discriminant(&errors[0]), discriminant(&errors[1]), "{errors:?}");
    database.unlock(lock).await;
    let mut session = store.session().await.expect("a session");
    let claims = [claim("c", 3), claim("b", 2), claim("a", 1)];
    let answers = session.begin(&claims).await.expect("claimed");
    assert_eq!(answers[..], [Claimed::Fresh; 3]);
    session.finish(&[], NextTx::None).await.expect("committed");
    session.release().await;
    assert_eq!(rows(&database).await, 3);
}

/// Two workers claim overlapping sets in opposite orders; each id is fresh once.
async fn sets_in_any_order_do_not_deadlock<D: TestDatabase>() {
    let (database, store) = store::<D>(Duration::from_secs(30)).await;
    let ids: Vec<_> = (0..40).map(|number| format!("m{number}")).collect();
    let worker = |reversed: bool| {
        let (store, mut ids) = (store.clone(), ids.clone());
        if reversed {
            ids.reverse();
        }
        tokio::spawn(async move {
            let mut fresh = 0;
            let mut session = store.session().await.expect("a session");
            for part in ids.windows(10) {
                let claims: Vec<_> = part.iter().map(|id| claim(id, 7)).collect();
                let answers = session.begin(&claims).await.expect("claimed");
                let claimed = answers.iter().filter(|claimed| !claimed.is_duplicate()).count();
                fresh += claimed;
                match claimed {
                    0 => session.discard().await.expect("nothing was written"),
                    _ => session.finish(&[], NextTx::None).await.expect("committed"),
                }
            }
            session.release().await;
            fresh
        })
    };
    let (one, other) = (worker(false), worker(true));
    let fresh = one.await.expect("no panic") + other.await.expect("no panic");
    assert_eq!(fresh, ids.len());
    assert_eq!(rows(&database).await, 40);
}
