//! What an operator does with the URL of a database alone: no handler is selected, and no inbox runs.

use inbox_runtime::{DeadLetterQuery, DeadLetterStatus, Error, admin::Database};
use inbox_tests::{TestDatabase, database_suite};

use crate::calls::{letter, records};

database_suite!(dead_letters_are_listed_counted_replayed_and_discarded);

async fn dead_letters_are_listed_counted_replayed_and_discarded<D: TestDatabase>() {
    let (database, records) = records::<D>().await;
    for id in ["a", "b", "c"] {
        records
            .write_dead_letter(&letter(id, "broken", None))
            .await
            .expect("written");
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
