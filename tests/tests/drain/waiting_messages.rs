//! What an inbox that is told to stop does with messages that wait for their turn at the database.

use std::{sync::Arc, time::Duration};

use inbox_tests::{Step, TestBroker, TestDatabase, World, eventually, suite};
use tokio::sync::Semaphore;

suite!(
    f78_what_waits_for_its_turn_is_not_acknowledged,
    f78_what_waits_for_its_turn_is_released,
);

/// A world in which the handler of `billing` has the database until the semaphore has a permit.
async fn occupied<B: TestBroker, D: TestDatabase>() -> (World<B, D>, Arc<Semaphore>) {
    let (world, gate) = (World::new().await, Arc::new(Semaphore::new(0)));
    let wait = gate.clone();
    world.probe.script(move |call| match call.group.as_str() {
        "billing" => Step::Gate(wait.clone()),
        _ => Step::Ok,
    });
    (world, gate)
}

/// Under at_most_once nobody else gets a message that is acknowledged: it is not, as long as it waits for its turn.
async fn f78_what_waits_for_its_turn_is_not_acknowledged<B: TestBroker, D: TestDatabase>() {
    waits_and_is_released::<B, D>("at-most-once").await;
}

/// The message is released, and no attempt is counted.
async fn f78_what_waits_for_its_turn_is_released<B: TestBroker, D: TestDatabase>() {
    let world = waits_and_is_released::<B, D>("shipping").await;
    world.assert_done("shipping", "m1").await;
}

async fn waits_and_is_released<B: TestBroker, D: TestDatabase>(group: &str) -> World<B, D> {
    let (world, gate) = occupied::<B, D>().await;
    world.publish("m1").await;
    let billing = world.inbox(&["billing"]).await.spawn();
    eventually("billing has begun", async || world.probe.runs("billing", "m1") == 1).await;
    // The shutdown timeout is longer than the test waits for the end.
    let builder = world.builder(&[group]).shutdown_timeout(Duration::from_secs(300));
    let waiting = builder.build().await.expect("an inbox").spawn();
    eventually("the group has the message or is through", async || {
        let settled = world.broker.settled(group, "order.created").await;
        settled.is_some_and(|settled| settled.waiting == 0)
    })
    .await;
    waiting.stop();
    if !B::COUNTS {
        // Its first message counts as a redelivery, whose attempt waits for the database too.
        gate.add_permits(1);
    }
    // It ends while billing still has the database.
    let joined = tokio::time::timeout(Duration::from_mins(2), waiting.join()).await;
    let report = joined.expect("an end in time").expect("a clean end");
    assert_eq!((report.failed, report.deferred), (0, 0), "{report}");
    gate.add_permits(1);
    billing.stop();
    billing.join().await.expect("a clean end");
    // Its lease of 30 s has not run out: it is there because it was released.
    let mut next = world.inbox(&[group]).await;
    next.run_until_idle().await.expect("the broker");
    assert!(world.settled(group).await);
    assert_eq!(world.probe.runs(group, "m1"), 1);
    assert_eq!(world.database.effects(group, "m1").await, 1);
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
    world
}
