//! Where a group starts: at a time, at a sequence, and after its durable was deleted.

use std::time::{Duration, SystemTime};

use inbox_runtime::{Broker, BrokerError, Source, StartPosition, Subscription};
use inbox_tests::{TestBroker, TestDatabase, nothing_more};
use serde_json::{Value, json};

use super::{World, handlers, publish, refused, server, work_queue, world, world_on};

async fn delete_durable(world: &World, group: &str) {
    let question = format!("CONSUMER.DELETE.TEST.{group}@order,created");
    let deleted = world.broker.account().api(&question, Value::Null).await;
    assert_eq!(deleted["success"], true, "{deleted}");
}

async fn handled(world: &World, group: &str) -> u64 {
    let mut inbox = world.inbox(&[group]).await;
    inbox.run_until_idle().await.expect("the broker").processed
}

/// The database has records of the group: messages that came while its durable was gone are not skipped.
#[tokio::test]
async fn g13_a_known_group_whose_durable_was_deleted_starts_at_the_first_message() {
    let world = world().await;
    let mut inbox = world.inbox(&["newest"]).await;
    nothing_more(&mut inbox).await;
    drop(inbox);
    publish(&world, 1, 3).await;
    assert_eq!(handled(&world, "newest").await, 3);
    publish(&world, 4, 6).await;
    delete_durable(&world, "newest").await;
    publish(&world, 7, 8).await;
    let (log, _guard) = super::startup::logged();
    let mut inbox = world.inbox(&["newest"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.duplicate), (5, 3), "{report}");
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 8);
    let log = String::from_utf8_lossy(&log.lock().expect("the log")).into_owned();
    assert!(log.contains("its durable is gone"), "{log}");
    assert!(log.contains("WARN"), "{log}");
}

/// Without records a group is new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_a_group_without_records_starts_with_new_messages() {
    let world = world().await;
    publish(&world, 1, 3).await;
    assert_eq!(handled(&world, "newest").await, 0);
    publish(&world, 4, 4).await;
    assert_eq!(handled(&world, "newest").await, 1);
}

/// And how to avoid them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_the_advice_to_delete_a_durable_names_the_consequences() {
    let world = world().await;
    publish(&world, 1, 3).await;
    assert_eq!(handled(&world, "billing").await, 3);
    delete_durable(&world, "billing").await;
    let body = json!({ "stream_name": "TEST", "config": { "durable_name": "billing@order,created",
        "name": "billing@order,created", "ack_policy": "all", "filter_subject": "order.created",
        "deliver_policy": "by_start_sequence", "opt_start_seq": 3 } });
    let account = world.broker.account();
    let made = account.api("CONSUMER.CREATE.TEST.billing@order,created", body).await;
    assert!(made["config"].is_object(), "{made}");
    let problem = refused(world.builder(&["billing"])).await;
    for expected in ["ack_policy", "start = \"sequence:3\"", "are handled again"] {
        assert!(problem.contains(expected), "{expected}: {problem}");
    }
}

async fn sequences(world: &World, group: &str, start: StartPosition) -> Result<Vec<u64>, BrokerError> {
    let subscription = Subscription::new(group, "order.created").start(start).max_in_flight(10);
    let mut source = world.broker.connect().subscribe(vec![subscription]).await?.remove(0);
    let mut all = Vec::new();
    loop {
        let pulled = source.pull(10, Duration::ZERO).await?;
        if pulled.is_empty() {
            return Ok(all);
        }
        let position = |delivery: &str| delivery.rsplit(':').next().and_then(|seq| seq.parse::<u64>().ok());
        all.extend(pulled.iter().filter_map(|(delivery, _)| position(&delivery.position)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_can_start_at_a_time_or_a_sequence() {
    let world = world().await;
    publish(&world, 1, 3).await;
    // More than a millisecond on each side.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a time");
    let millis = i64::try_from(since.as_millis()).expect("a time");
    tokio::time::sleep(Duration::from_millis(20)).await;
    publish(&world, 4, 6).await;
    let all = async |group: &str, start| sequences(&world, group, start).await.expect("the broker");
    assert_eq!(all("a", StartPosition::Time(millis)).await, [4, 5, 6]);
    assert_eq!(all("b", StartPosition::Time(0)).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(all("c", StartPosition::Sequence(3)).await, [3, 4, 5, 6]);
    assert!(all("d", StartPosition::Sequence(1000)).await.is_empty());
    assert_eq!(all("e", StartPosition::First).await, [1, 2, 3, 4, 5, 6]);
    // The attribute's `start` is that of the group, not of each program.
    let mut fifth = world
        .builder_of(handlers::MODULE, &["fifth"])
        .build()
        .await
        .expect("an inbox");
    assert_eq!(fifth.run_until_idle().await.expect("the broker").processed, 2);
    drop(fifth);
    publish(&world, 7, 7).await;
    let mut fifth = world
        .builder_of(handlers::MODULE, &["fifth"])
        .build()
        .await
        .expect("an inbox");
    assert_eq!(fifth.run_until_idle().await.expect("the broker").processed, 1);
}

/// A work queue accepts no other start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_queue_starts_at_its_first_message_only() {
    let server = server().await;
    let world = work_queue(&server).await;
    for start in [StartPosition::Sequence(5), StartPosition::Time(1_000)] {
        let problem = sequences(&world, "billing", start).await.expect_err("refused");
        assert!(matches!(problem, BrokerError::Invalid(_)), "{problem}");
        assert!(problem.to_string().contains("start = \"first\""), "{problem}");
    }
}

/// Streams without subjects, whose messages come from another stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g53_streams_with_sources_mirrors_and_transforms_are_read() {
    let whole = json!({ "sources": [{ "name": "TEST" }] });
    let some = json!({ "sources": [{ "name": "TEST", "filter_subject": "order.created" }] });
    let mirror = json!({ "mirror": { "name": "TEST" } });
    let mapped = json!({ "sources": [{ "name": "TEST",
        "subject_transforms": [{ "src": "raw.created", "dest": "order.created" }] }] });
    for (config, subject) in [
        (whole, "order.created"),
        (some, "order.created"),
        (mirror, "order.created"),
        (mapped, "raw.created"),
    ] {
        let world = world().await;
        let account = world.broker.account();
        account.make_stream("SECOND", &[], config.clone()).await;
        world.publish_to(subject, "m1").await;
        world.publish_to(subject, "m2").await;
        let inbox = world.builder_of(handlers::MODULE, &["named"]).spawn().await;
        let inbox = inbox.unwrap_or_else(|error| panic!("{config}: {error}"));
        super::effects(&world, 2).await;
        super::stop(inbox).await;
    }
}

/// The stream stores messages under another subject than they were published to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g53_a_stream_with_a_subject_transform_is_read_by_the_new_subjects() {
    let server = server().await;
    let world = world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    let renames = json!({ "subject_transform": { "src": "raw.>", "dest": "order.>" } });
    account.make_stream("SECOND", &["raw.>"], renames).await;
    world.publish_to("raw.created", "m1").await;
    let mut inbox = world
        .builder_of(handlers::MODULE, &["named"])
        .build()
        .await
        .expect("an inbox");
    assert_eq!(inbox.run_until_idle().await.expect("the broker").processed, 1);
}

/// With a named stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g53_messages_of_a_former_subject_of_a_stream_are_read() {
    let server = server().await;
    let world = world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    account.make_stream("SECOND", &["order.>"], json!({})).await;
    publish(&world, 1, 2).await;
    let config = json!({ "name": "SECOND", "subjects": ["nothing.here"], "storage": "file", "retention": "limits",
        "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "num_replicas": 1 });
    let updated = account.api("STREAM.UPDATE.SECOND", config).await;
    assert!(updated["config"].is_object(), "{updated}");
    let mut inbox = world
        .builder_of(handlers::MODULE, &["named"])
        .build()
        .await
        .expect("an inbox");
    assert_eq!(inbox.run_until_idle().await.expect("the broker").processed, 2);
}
