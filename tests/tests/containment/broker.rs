//! A user's own broker whose calls panic: each panic is an error like any other, and messages are handled.

use std::time::Duration;

use inbox_runtime::{Broker, BrokerError, Embedded, Inbox, Message, Outcome, Published, Subscription};
use inbox_tests::{Step, TestBroker, TestDatabase, World, embedded_suite, eventually, next};

embedded_suite!(
    g42_a_panic_in_an_acknowledgement_is_a_failed_one,
    g42_a_panic_in_a_nak_leaves_the_message_to_its_lease,
    g42_a_panic_before_the_handler_at_most_once_loses_nothing,
    g42_panics_of_the_broker_leave_a_spawned_inbox_alive,
    a_broker_that_returns_too_few_sources_is_a_start_error,
);

async fn g42_a_panic_in_an_acknowledgement_is_a_failed_one<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    world.flaky.panic_in("ack", 1);
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    let report = inbox.report();
    assert_eq!((report.acked, report.ack_failures), (0, 1), "{report}");
    world.lease_runs_out().await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn g42_a_panic_in_a_nak_leaves_the_message_to_its_lease<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("once"),
        _ => Step::Ok,
    });
    world.flaky.panic_in("nak", 1);
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.lease_runs_out().await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

/// It isn't acknowledged, so the handler doesn't run.
async fn g42_a_panic_before_the_handler_at_most_once_loses_nothing<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["at-most-once"]).await;
    world.flaky.panic_in("ack_confirmed", 1);
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(world.probe.total(), 0);
    world.lease_runs_out().await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert!(world.settled("at-most-once").await);
}

/// The next ten calls of each panic.
async fn g42_panics_of_the_broker_leave_a_spawned_inbox_alive<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 => Step::Sleep(Duration::from_millis(400)),
        _ => Step::Ok,
    });
    let inbox: Inbox = world
        .builder(&["audit"])
        .ack_wait(Duration::from_millis(600))
        .build()
        .await
        .expect("an inbox");
    for call in [
        "ack",
        "nak",
        "drop",
        "progress",
        "status",
        "ack_wait",
        "next_in_partition",
        "close",
    ] {
        world.flaky.panic_in(call, 10);
    }
    world.flaky.panic_in("pull", 2);
    for number in 0..20 {
        world.publish(&format!("m{number}")).await;
    }
    let handle = inbox.spawn();
    eventually("every call has panicked", async || {
        let calls = ["ack", "drop", "progress", "ack_wait", "pull"];
        let _ = handle.health();
        calls.into_iter().all(|call| world.flaky.panics_left(call) == 0)
    })
    .await;
    eventually("everything is settled", async || {
        world.broker.pass(Duration::from_secs(1)).await;
        world.broker.settled("audit", ">").await == Some(inbox_tests::Settled::ALL)
    })
    .await;
    for number in 0..20 {
        world.assert_done("audit", &format!("m{number}")).await;
    }
    handle.stop();
    let report = handle.join().await.expect("a clean end");
    assert_eq!(report.processed, 20, "{report}");
    assert!(report.ack_failures >= 1, "{report}");
}

/// It forgets the last subscription.
struct Forgetful(Embedded);

impl Broker for Forgetful {
    type Source = <Embedded as Broker>::Source;

    async fn describe(&self) -> Result<String, BrokerError> {
        Ok("forgetful 1.0".to_owned())
    }

    async fn subscribe(&self, mut subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        subscriptions.pop();
        self.0.subscribe(subscriptions).await
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        self.0.publish(message).await
    }
}

async fn a_broker_that_returns_too_few_sources_is_a_start_error<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let builder = world
        .builder(&["audit", "billing"])
        .broker(Forgetful(Embedded::memory()));
    let error = builder
        .build()
        .await
        .expect_err("a handler without a source")
        .to_string();
    assert!(
        error.contains("forgetful 1.0") && error.contains("1 sources for 2"),
        "{error}"
    );
}
