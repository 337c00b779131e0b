//! What is counted and measured, with a recorder for each test.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{Inbox, InboxBuilder, Message, Outcome, SourceStatus};
use inbox_tests::{
    EmbeddedMemory, Order, SqliteFile, Step, TestBroker, TestDatabase, World, embedded_suite, eventually, next,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::Semaphore;

embedded_suite!(
    deliveries_are_counted_by_what_became_of_them,
    an_acknowledgement_that_fails_is_counted,
    f11_the_age_of_the_oldest_open_transaction_is_seen,
);

/// Builds an inbox whose metrics can be read.
async fn recorded(builder: InboxBuilder) -> (Inbox, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    // The test's own future stays on its thread, and so does the building.
    let guard = metrics::set_default_local_recorder(&recorder);
    let inbox = builder.build().await.expect("an inbox");
    drop(guard);
    (inbox, handle)
}

/// The value of a metric of the handler `billing`, with that label.
fn value(handle: &PrometheusHandle, name: &str, label: &str) -> Option<f64> {
    let text = handle.render();
    let line = text.lines().find(|line| {
        let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{'));
        rest.is_some_and(|rest| rest.contains("group=\"billing\"") && rest.contains(label))
    });
    line?.rsplit_once(' ')?.1.parse().ok()
}

async fn deliveries_are_counted_by_what_became_of_them<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.id.as_str() {
        "bad" => Step::Fail("always"),
        _ => Step::Ok,
    });
    let (mut inbox, handle) = recorded(world.builder(&["billing"]).subject_prefix("staging")).await;
    let value = |name, label| value(&handle, name, label);
    assert_eq!(
        value("inbox_deliveries_total", "outcome=\"processed\""),
        Some(0.0),
        "there from the start"
    );

    let good = Order::new("o1").to("staging.order.created").id("good");
    let copy = Order::new("o2").to("staging.order.created").id("good");
    let bad = Order::new("o3").to("staging.order.created").id("bad");
    let broken = Message::new("staging.order.created", "no JSON").id("broken");
    let mut outcomes = Vec::new();
    for message in [good, copy, broken, bad] {
        world.broker.publish(message).await;
        outcomes.push(next(&mut inbox).await);
    }
    outcomes.extend([next(&mut inbox).await, next(&mut inbox).await]);
    use Outcome::{DeadLettered, Duplicate, Failed, Processed};
    assert_eq!(
        outcomes,
        [Processed, Duplicate, DeadLettered, Failed, Failed, DeadLettered]
    );

    for (name, label, expected) in [
        ("inbox_deliveries_total", "outcome=\"processed\"", 1.0),
        ("inbox_deliveries_total", "outcome=\"duplicate\"", 1.0),
        ("inbox_deliveries_total", "outcome=\"failed\"", 2.0),
        ("inbox_deliveries_total", "outcome=\"dead_lettered\"", 2.0),
        ("inbox_deliveries_total", "outcome=\"locked\"", 0.0),
        ("inbox_attempts_total", "", 4.0),
        ("inbox_dead_letters_total", "reason=\"exhausted\"", 1.0),
        ("inbox_dead_letters_total", "reason=\"rejected\"", 1.0),
        ("inbox_dead_letters_total", "reason=\"permanent\"", 0.0),
        ("inbox_payload_mismatches_total", "", 1.0),
        ("inbox_ack_failures_total", "", 0.0),
        ("inbox_handling_seconds_count", "", 6.0),
        ("inbox_publish_to_commit_seconds_count", "", 1.0),
        ("inbox_in_flight_messages", "", 0.0),
    ] {
        assert_eq!(
            value(name, label),
            Some(expected),
            "{name} {label}\n{}",
            handle.render()
        );
    }
    let text = handle.render();
    let handler = format!(
        "handler=\"inbox_tests::handlers::{}::billing\",subject=\"order.created\"",
        D::HANDLERS
    );
    assert!(text.contains(&handler), "the subject as it is declared: {text}");
    assert!(!text.contains("good"), "no ids: {text}");
    assert!(!text.contains("inbox_lag_messages{"), "nobody knows a lag: {text}");
}

async fn an_acknowledgement_that_fails_is_counted<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (mut inbox, handle) = recorded(world.builder(&["billing"])).await;
    world.publish("m1").await;
    world.flaky.lose_acks(1);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(value(&handle, "inbox_ack_failures_total", ""), Some(1.0));
}

async fn f11_the_age_of_the_oldest_open_transaction_is_seen<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    world.probe.script({
        let gate = gate.clone();
        move |_| Step::Gate(gate.clone())
    });
    let (inbox, handle) = recorded(world.builder(&["billing"])).await;
    let inbox = inbox.spawn();
    let age = || value(&handle, "inbox_oldest_transaction_seconds", "").unwrap_or_default();
    let oldest = || inbox.health().handlers[0].oldest_transaction;
    assert_eq!(oldest(), None, "an idle handler has no transaction");
    world.publish("m1").await;
    eventually("the transaction is open", async || oldest().is_some()).await;
    let before = oldest();
    eventually("its age is recorded", async || age() > 0.0).await;
    assert!(oldest() > before, "it grows");
    assert_eq!(value(&handle, "inbox_in_flight_messages", ""), Some(1.0));
    gate.add_permits(1);
    eventually("it is over", async || oldest().is_none() && age() == 0.0).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
}

/// On one thread, so that what is registered while the inbox runs is the test's too.
#[tokio::test]
async fn the_lag_is_seen_where_the_broker_knows_it() {
    let world = World::<EmbeddedMemory, SqliteFile>::new().await;
    let status = SourceStatus::default();
    world.flaky.say(status.clone());
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(value(&handle, "inbox_lag_messages", ""), None, "not known yet");
    status.set_lag(Some(17));
    let lag = || value(&handle, "inbox_lag_messages", "");
    eventually("the lag is recorded", async || lag() == Some(17.0)).await;
    assert_eq!(inbox.health().handlers[0].lag, Some(17));
    // A gauge can't be taken back: the last value of it would be wrong.
    status.set_lag(None);
    eventually("it is not known any more", async || lag().is_some_and(f64::is_nan)).await;
    assert_eq!(inbox.health().handlers[0].lag, None);
    status.set_lag(Some(18));
    eventually("it is known again", async || lag() == Some(18.0)).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
    assert!(lag().is_some_and(f64::is_nan), "nobody looks any more");
}
