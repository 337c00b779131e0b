//! The start: durables with other configurations, streams of other kinds, nothing there yet.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox_runtime::{Broker, BrokerError, Nats, Outcome, Source, Subscription};
use inbox_tests::{TestBroker, next, nothing_more};
use serde_json::{Value, json};

use super::{
    build, durable, effects, handlers, publish, ready, refused, run, server, stop, work_queue, world, world_on,
};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_new_group_starts_where_it_says() {
    let world = world().await;
    publish(&world, 1, 3).await;
    let mut newest = world.inbox(&["newest"]).await;
    nothing_more(&mut newest).await;
    let mut billing = world.inbox(&["billing"]).await;
    assert_eq!(billing.run_until_idle().await.expect("the broker").processed, 3);
    // The group exists now.
    drop((newest, billing));
    publish(&world, 4, 4).await;
    for group in ["newest", "billing"] {
        let mut inbox = world.inbox(&[group]).await;
        assert_eq!(
            inbox.run_until_idle().await.expect("the broker").processed,
            1,
            "{group}"
        );
    }
}

/// Creates a durable of our name with another configuration.
async fn create_foreign_durable(world: &super::World, more: Value) {
    let mut config = json!({ "durable_name": "billing@order,created", "name": "billing@order,created",
        "ack_policy": "explicit", "filter_subject": "order.created", "deliver_policy": "all" });
    if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
        config.extend(more);
    }
    let body = json!({ "stream_name": "TEST", "config": config });
    let made = world
        .broker
        .account()
        .api("CONSUMER.CREATE.TEST.billing@order,created", body)
        .await;
    assert!(made.get("error").is_none(), "{made}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f45_a_differing_configuration_is_updated() {
    for (field, theirs, ours) in [
        ("ack_wait", json!(1_000_000_000_u64), json!(30_000_000_000_u64)),
        ("max_deliver", json!(2), json!(-1)),
        ("max_ack_pending", json!(2), json!(-1)),
        ("backoff", json!([1_000_000_000_u64, 2_000_000_000_u64]), Value::Null),
        ("headers_only", json!(true), Value::Null),
        ("max_batch", json!(1), Value::Null),
        ("inactive_threshold", json!(60_000_000_000_u64), Value::Null),
    ] {
        let world = world().await;
        let mut more = json!({ field: theirs });
        if field == "backoff" {
            more["max_deliver"] = json!(5);
        }
        create_foreign_durable(&world, more).await;
        publish(&world, 1, 1).await;
        let mut inbox = build(&world, "billing", LONG).await;
        let info = durable(world.broker.account(), "billing").await;
        assert_eq!(info["config"][field], ours, "{field}: {info}");
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{field}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f45_what_cannot_be_updated_is_refused_with_field_wanted_and_actual() {
    for (more, field, wanted, actual) in [
        (json!({ "ack_policy": "none" }), "ack_policy", "explicit", "none"),
        (
            json!({ "deliver_subject": "push.here" }),
            "deliver_subject",
            "none",
            "push.here",
        ),
        (
            json!({ "filter_subject": "raw.>" }),
            "filter_subject",
            "order.created",
            "raw.>",
        ),
        (
            json!({ "replay_policy": "original" }),
            "replay_policy",
            "instant",
            "original",
        ),
    ] {
        let world = world().await;
        create_foreign_durable(&world, more).await;
        let problem = refused(world.builder(&["billing"])).await;
        for text in [field, wanted, actual, "billing@order,created", "TEST"] {
            assert!(problem.contains(text), "{text}: {problem}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f46_f59_the_durable_of_every_ack_strategy_is_configured() {
    let world = world().await;
    for group in ["billing", "at-least-once", "on-persist", "at-most-once"] {
        drop(world.inbox(&[group]).await);
        let config = &durable(world.broker.account(), group).await["config"];
        assert_eq!(config["ack_policy"], "explicit", "{group}");
        assert_eq!(config["max_deliver"], -1, "{group}");
        assert_eq!(config["ack_wait"], 30_000_000_000_u64, "{group}");
        assert_eq!(config["deliver_subject"], Value::Null, "{group}");
        assert_eq!(config["backoff"], Value::Null, "{group}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_a_missing_stream_is_waited_for() {
    let server = server().await;
    let world = world_on(&server).await;
    let account = world.broker.account();
    account.api("STREAM.DELETE.TEST", Value::Null).await;
    let inbox = run(&world, "billing", LONG).await;
    let health = inbox.health();
    assert!(health.live && !health.ready, "{health:?}");
    assert!(
        health.reasons[0].contains("no stream holds the subject order.created"),
        "{health:?}"
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!inbox.health().ready);
    account.make_stream("TEST", &["order.>"], json!({})).await;
    ready(&inbox, true).await;
    publish(&world, 1, 2).await;
    effects(&world, 2).await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_a_server_that_is_down_is_waited_for() {
    let server = server().await;
    let world = world_on(&server).await;
    publish(&world, 1, 2).await;
    server.stop();
    let inbox = run(&world, "billing", LONG).await;
    let health = inbox.health();
    assert!(health.live && !health.ready, "{health:?}");
    assert!(
        health.reasons[0].contains("no NATS server can be reached"),
        "{health:?}"
    );
    server.resume().expect("the server");
    effects(&world, 2).await;
    ready(&inbox, true).await;
    stop(inbox).await;
}

/// The server was down at the start, so the error is not fatal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misconfiguration_found_after_the_start_is_reported_by_health() {
    let server = server().await;
    let world = world_on(&server).await;
    create_foreign_durable(&world, json!({ "ack_policy": "none" })).await;
    publish(&world, 1, 1).await;
    server.stop();
    let inbox = run(&world, "billing", LONG).await;
    server.resume().expect("the server");
    inbox_tests::eventually("it says so", || async {
        inbox
            .health()
            .reasons
            .iter()
            .any(|reason| reason.contains("ack_policy"))
    })
    .await;
    let account = world.broker.account();
    account
        .api("CONSUMER.DELETE.TEST.billing@order,created", Value::Null)
        .await;
    effects(&world, 1).await;
    ready(&inbox, true).await;
    stop(inbox).await;
}

async fn subscribe(
    broker: &Nats,
    subscription: Subscription,
) -> Result<Vec<inbox_runtime::nats::NatsSource>, BrokerError> {
    broker.subscribe(vec![subscription]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f53_names_that_nats_forbids_are_refused() {
    let world = world().await;
    let broker = world.broker.connect();
    for (group, subject, expected) in [
        ("", "order.created", "empty"),
        ("a b", "order.created", "a space"),
        ("*", "order.created", "`*`"),
        ("café", "order.created", "`é`"),
        (&"g".repeat(300), "order.created", "300 bytes"),
        (&"g".repeat(120), &format!("order.{}", "s".repeat(200)), "255"),
    ] {
        let problem = subscribe(&broker, Subscription::new(group, subject))
            .await
            .expect_err(group);
        assert!(matches!(problem, BrokerError::Invalid(_)), "{problem}");
        assert!(problem.to_string().contains(expected), "{problem}");
    }
    for group in ["billing.v2", "Billing-2_b"] {
        subscribe(&broker, Subscription::new(group, "order.created"))
            .await
            .expect(group);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_durations_are_stored_exactly() {
    let world = world().await;
    let broker = world.broker.connect();
    for ack_wait in [
        Duration::from_secs(20),
        Duration::from_millis(1500),
        Duration::from_nanos(1_500_000_001),
    ] {
        let subscription = Subscription::new("billing", "order.created").ack_wait(ack_wait);
        let sources = subscribe(&broker, subscription).await.expect("subscribed");
        let status = sources[0].status();
        assert!(status.reasons().is_empty(), "{status:?}");
        assert_eq!(sources[0].ack_wait(), ack_wait);
        let info = durable(world.broker.account(), "billing").await;
        assert_eq!(
            u128::from(info["config"]["ack_wait"].as_u64().expect("a number")),
            ack_wait.as_nanos()
        );
    }
    for ack_wait in [Duration::ZERO, Duration::MAX, Duration::from_secs(300 * 365 * 86_400)] {
        let subscription = Subscription::new("billing", "order.created").ack_wait(ack_wait);
        let problem = subscribe(&broker, subscription).await.expect_err("refused");
        assert!(problem.to_string().contains("ack-wait"), "{problem}");
    }
    let problem = refused(world.builder(&["billing"]).ack_wait(Duration::ZERO)).await;
    assert!(problem.contains("ack_wait"), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_group_on_a_work_queue_is_refused() {
    let server = server().await;
    let world = work_queue(&server).await;
    publish(&world, 1, 1).await;
    let mut billing = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut billing).await, Outcome::Processed);
    let problem = refused(world.builder(&["shipping"])).await;
    assert!(problem.contains("TEST has retention `workqueue`"), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_over_two_streams_needs_a_named_stream() {
    let world = world().await;
    let account = world.broker.account();
    account.make_stream("SECOND", &["payment.*"], json!({})).await;
    let problem = refused(world.builder_of(handlers::MODULE, &["anything"])).await;
    for text in ["*.created", "SECOND", "TEST", "stream = \""] {
        assert!(problem.contains(text), "{text}: {problem}");
    }
    // A named stream must hold the subject.
    let problem = refused(world.builder_of(handlers::MODULE, &["named"])).await;
    assert!(problem.contains("SECOND holds payment.*"), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn describe_names_version_and_servers() {
    let world = world().await;
    let inbox = world.inbox(&["billing"]).await;
    let broker = inbox.describe().next().expect("the broker").to_owned();
    assert!(
        broker.starts_with("NATS 2.") && broker.contains("127.0.0.1"),
        "{broker}"
    );
    let nowhere = Nats::new("nats://user:hidden@127.0.0.1:1").expect("a URL");
    let described = nowhere.describe().await.expect("it isn't there yet");
    assert!(
        described.contains("not reached yet") && !described.contains("hidden"),
        "{described}"
    );
}

/// Captures the log of this thread as long as the guard lives.
pub(super) fn logged() -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("the log").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || Sink(sink.clone()));
    (log, tracing::subscriber::set_default(subscriber.finish()))
}

#[tokio::test]
async fn a_durable_without_a_handler_is_warned_of() {
    let world = world().await;
    let broker = world.broker.connect();
    for subject in ["order.created", "orders.created"] {
        subscribe(&broker, Subscription::new("billing", subject))
            .await
            .expect("subscribed");
    }
    subscribe(&broker, Subscription::new("shipping", "order.created"))
        .await
        .expect("subscribed");
    let (log, _guard) = logged();
    subscribe(&broker, Subscription::new("billing", "order.created"))
        .await
        .expect("subscribed");
    let log = String::from_utf8(log.lock().expect("the log").clone()).expect("text");
    let reported: Vec<_> = log
        .lines()
        .filter(|line| line.contains("no handler any more"))
        .collect();
    assert_eq!(reported.len(), 1, "{log}");
    assert!(reported[0].contains("billing@orders,created"), "{log}");
}
