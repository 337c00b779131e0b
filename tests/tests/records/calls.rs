//! What the tables for attempts and dead letters answer, call by call: the same on every database.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{
    __private::{AttemptKey, AttemptLimit, BeginAttempt, NewDeadLetter, Records, ReplayToken, Store},
    DeadLetterReason, Fingerprint, Headers, IntoStore, MigrateMode, StoreSettings,
};
use inbox_tests::{TestDatabase, database_suite};

database_suite!(
    attempts_are_noted_counted_and_refunded,
    a_handled_message_needs_no_attempts,
    a_dead_letter_is_written_once_per_message,
    a_replay_belongs_to_its_last_lease,
    a_replay_that_nobody_leases_is_stranded,
    a_group_is_known_by_whatever_it_has_left,
);

const LIMIT: AttemptLimit = AttemptLimit {
    max: Some(3),
    claims: true,
    replay: false,
};

pub(crate) async fn records<D: TestDatabase>() -> (D, Arc<dyn Records>) {
    let database = D::fresh().await;
    let records = database.pool().into_store(StoreSettings::default()).records();
    records.migrate(MigrateMode::Auto).await.expect("the tables");
    (database, records)
}

fn key(id: &str) -> AttemptKey {
    AttemptKey {
        group: "billing".to_owned(),
        handler: "shop::billing".to_owned(),
        position: "7".to_owned(),
        message_id: Some(id.to_owned()),
        fingerprint: Fingerprint::from_i64(7),
    }
}

pub(crate) fn letter(id: &str, error: &str, replay: Option<ReplayToken>) -> NewDeadLetter {
    NewDeadLetter {
        key: key(id),
        replay,
        subject: "order.created".to_owned(),
        headers: Headers::new(),
        payload: Some("{}".into()),
        message_key: None,
        published_at: None,
        reason: DeadLetterReason::Permanent,
        error: error.to_owned(),
        attempts: 1,
    }
}

async fn begin(records: &dyn Records, limit: AttemptLimit) -> BeginAttempt {
    records.begin_attempt(&key("a"), limit).await.expect("read")
}

async fn attempts_are_noted_counted_and_refunded<D: TestDatabase>() {
    let (_database, records) = records::<D>().await;
    let (records, key) = (&*records, key("a"));
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Suspect, "no row");
    assert_eq!(records.count_attempt(&key).await.expect("counted"), 1);
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Suspect, "it is unfinished");
    records.refund_attempt(&key, true).await.expect("refunded");
    assert_eq!(records.count_attempt(&key).await.expect("counted"), 1);
    assert_eq!(records.record_failure(&key, true, "one").await.expect("recorded"), 1);

    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Begun(1));
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Suspect, "it is noted");
    records.refund_attempt(&key, false).await.expect("refunded");
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Begun(1));
    for (error, attempts) in [("two", 2), ("three", 3)] {
        let recorded = records.record_failure(&key, false, error).await;
        assert_eq!(recorded.expect("recorded"), attempts);
    }
    let exhausted = BeginAttempt::Exhausted {
        attempts: 3,
        unfinished: false,
        error: Some("three".to_owned()),
    };
    assert_eq!(begin(records, LIMIT).await, exhausted);
    let unlimited = AttemptLimit { max: None, ..LIMIT };
    assert_eq!(begin(records, unlimited).await, BeginAttempt::Begun(3));

    records.clear_attempts(&key).await.expect("deleted");
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Suspect, "no row");
    let replay = AttemptLimit { replay: true, ..LIMIT };
    assert_eq!(begin(records, replay).await, BeginAttempt::Begun(0));
}

async fn a_handled_message_needs_no_attempts<D: TestDatabase>() {
    let (database, records) = records::<D>().await;
    let records = &*records;
    assert_eq!(records.handled("billing", "a").await.expect("read"), None);
    records.record_failure(&key("a"), false, "one").await.expect("recorded");
    database
        .exec("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('billing', 'a', 5)")
        .await;
    let five = Fingerprint::from_i64(5);
    assert_eq!(records.handled("billing", "a").await.expect("read"), Some(five));
    assert_eq!(records.handled("audit", "a").await.expect("read"), None);
    let without_claim = AttemptLimit { claims: false, ..LIMIT };
    assert_eq!(begin(records, without_claim).await, BeginAttempt::Begun(1));
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::Handled(five));
    assert_eq!(database.number("SELECT count(*) FROM inbox_attempts").await, 0);
}

async fn a_dead_letter_is_written_once_per_message<D: TestDatabase>() {
    let (database, records) = records::<D>().await;
    let records = &*records;
    records.count_attempt(&key("a")).await.expect("counted");
    for error in ["first", "second"] {
        assert!(
            records
                .write_dead_letter(&letter("a", error, None))
                .await
                .expect("written")
        );
    }
    let unfinished = "SELECT count(*) FROM inbox_attempts WHERE unfinished";
    assert_eq!(database.number(unfinished).await, 0, "the attempt has ended");
    assert_eq!(begin(records, LIMIT).await, BeginAttempt::DeadLettered);
    assert!(
        records
            .write_dead_letter(&letter("b", "other", None))
            .await
            .expect("written")
    );

    let all = records.dead_letters(Some("billing"), 0, 10).await.expect("read");
    let errors: Vec<_> = all.iter().map(|letter| letter.error.as_str()).collect();
    assert_eq!(errors, ["second", "other"]);
    let page = records.dead_letters(None, all[0].id, 10).await.expect("read");
    assert_eq!(page, all[1..]);
    assert_eq!(records.dead_letters(Some("audit"), 0, 10).await.expect("read"), []);

    let id = all[0].id;
    assert_eq!(records.dead_letter(id).await.expect("read").as_ref(), Some(&all[0]));
    assert!(records.delete_dead_letter(id).await.expect("deleted"));
    assert!(!records.delete_dead_letter(id).await.expect("deleted before"));
    assert_eq!(database.number("SELECT count(*) FROM inbox_attempts").await, 0);
}

const LEASE: Duration = Duration::from_secs(60);

/// The lease of the only letter that is due.
async fn lease(records: &dyn Records) -> Option<ReplayToken> {
    let leased = records.lease_replays("billing", "shop::billing", 10, LEASE).await;
    let leased = leased.expect("leased");
    assert!(leased.len() <= 1, "{leased:?}");
    leased.first().map(|(_, token)| *token)
}

async fn a_replay_belongs_to_its_last_lease<D: TestDatabase>() {
    let (_database, records) = records::<D>().await;
    let records = &*records;
    records
        .write_dead_letter(&letter("a", "first", None))
        .await
        .expect("written");
    assert_eq!(lease(records).await, None, "no replay is requested");
    let id = records.dead_letters(None, 0, 1).await.expect("read")[0].id;
    assert_eq!(records.request_replay(id + 1).await.expect("read"), None);
    let requested = records.request_replay(id).await.expect("requested");
    assert_eq!(requested, Some(("billing".to_owned(), "shop::billing".to_owned())));

    let first = lease(records).await.expect("it is due");
    assert_eq!(lease(records).await, None, "it is leased");
    records.request_replay(id).await.expect("requested");
    assert_eq!(lease(records).await, None, "a request doesn't end a lease");
    assert!(records.postpone_replay(first, true, LEASE).await.expect("renewed"));
    assert!(
        records
            .postpone_replay(first, false, Duration::ZERO)
            .await
            .expect("released")
    );
    let second = lease(records).await.expect("it is due");

    assert!(!records.postpone_replay(first, true, LEASE).await.expect("too late"));
    assert!(!records.complete_replay(first).await.expect("too late"));
    let late = letter("a", "too late", Some(first));
    assert!(!records.write_dead_letter(&late).await.expect("too late"));
    let kept = records.dead_letter(id).await.expect("read").expect("it exists");
    assert_eq!(kept.error, "first");

    let failed = letter("a", "again", Some(second));
    assert!(records.write_dead_letter(&failed).await.expect("written"));
    assert!(!records.complete_replay(second).await.expect("it has failed"));
    records.request_replay(id).await.expect("requested");
    let third = lease(records).await.expect("it is due");
    assert!(records.complete_replay(third).await.expect("deleted"));
    assert_eq!(records.dead_letter(id).await.expect("read"), None);
}

async fn a_replay_that_nobody_leases_is_stranded<D: TestDatabase>() {
    let (_database, records) = records::<D>().await;
    let records = &*records;
    records
        .write_dead_letter(&letter("a", "first", None))
        .await
        .expect("written");
    let id = records.dead_letters(None, 0, 1).await.expect("read")[0].id;
    let stranded = async |wait| records.stranded_replays(wait).await.expect("read");
    let due = async || records.groups_with_due_replays().await.expect("read");
    assert_eq!(stranded(Duration::ZERO).await, [], "no replay is requested");
    assert_eq!(due().await, Vec::<String>::new(), "no replay is requested");
    records.request_replay(id).await.expect("requested");
    assert_eq!(due().await, ["billing"]);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(stranded(Duration::from_secs(60)).await, [], "not for that long");
    let found = stranded(Duration::ZERO).await;
    assert_eq!((found[0].group.as_str(), found[0].letters), ("billing", 1), "{found:?}");
    lease(records).await.expect("it is due");
    assert_eq!(stranded(Duration::ZERO).await, [], "it is leased");
    assert_eq!(due().await, Vec::<String>::new(), "it is leased");
}

async fn a_group_is_known_by_whatever_it_has_left<D: TestDatabase>() {
    let event = "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('billing', 'a', 5)";
    for left in ["an event", "an attempt", "a dead letter"] {
        let (database, records) = records::<D>().await;
        assert!(!records.has_group("billing").await.expect("read"));
        match left {
            "an event" => database.exec(event).await,
            "an attempt" => {
                records.count_attempt(&key("a")).await.expect("counted");
            }
            _ => {
                records
                    .write_dead_letter(&letter("a", "first", None))
                    .await
                    .expect("written");
            }
        }
        assert!(records.has_group("billing").await.expect("read"), "{left}");
        assert!(!records.has_group("audit").await.expect("read"), "{left}");
    }
}
