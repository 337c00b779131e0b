//! What an operator does with the URL of a database alone: no handler is selected, and no inbox runs.

use std::sync::Arc;

use inbox_runtime::{
    DeadLetterQuery, DeadLetterReason, DeadLetterStatus, Error, Fingerprint, Headers, IntoStore, MigrateMode,
    StoreSettings,
    admin::Database,
    store::{AttemptKey, NewDeadLetter, Records, Store},
};
use inbox_tests::{TestDatabase, database_suite};

database_suite!(dead_letters_are_listed_counted_replayed_and_discarded);

async fn records<D: TestDatabase>() -> (D, Arc<dyn Records>) {
    let database = D::fresh().await;
    let records = database.pool().into_store(StoreSettings::default()).records();
    records.migrate(MigrateMode::Auto).await.expect("the tables");
    (database, records)
}

fn letter(id: &str) -> NewDeadLetter {
    NewDeadLetter {
        key: AttemptKey {
            group: "billing".to_owned(),
            handler: "shop::billing".to_owned(),
            position: "7".to_owned(),
            message_id: Some(id.to_owned()),
            fingerprint: Fingerprint::from_i64(7),
        },
        replay: None,
        subject: "order.created".to_owned(),
        headers: Headers::new(),
        payload: Some("{}".into()),
        message_key: None,
        published_at: None,
        reason: DeadLetterReason::Permanent,
        error: "broken".to_owned(),
        attempts: 1,
    }
}

async fn dead_letters_are_listed_counted_replayed_and_discarded<D: TestDatabase>() {
    let (database, records) = records::<D>().await;
    for id in ["a", "b", "c"] {
        records.write_dead_letter(&letter(id)).await.expect("written");
    }
    let opened = Database::open(&database.url()).await.expect("opened");
    assert!(!opened.describe().await.expect("read").is_empty());
    let letters = opened.dead_letters();
    for (group, expected) in [(None, 3), (Some("billing"), 3), (Some("audit"), 0)] {
        assert_eq!(letters.count(group).await.expect("read"), expected, "{group:?}");
    }
    let listed = letters.list(DeadLetterQuery::default().limit(2)).await.expect("read");
    let [first, second] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert!(letters.discard(first.id).await.expect("deleted"));
    assert!(letters.replay(second.id).await.expect("requested"));
    let second = letters.get(second.id).await.expect("read").expect("it waits");
    assert_eq!(second.status, DeadLetterStatus::Replaying);
    assert_eq!(letters.count(None).await.expect("read"), 2);
    assert_eq!(records.groups_with_due_replays().await.expect("read"), ["billing"]);
}

#[tokio::test]
async fn a_database_that_is_not_there_is_an_error_at_once() {
    let error = Database::open("sqlite:///nowhere/nothing-there.db")
        .await
        .expect_err("no such file");
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
}
