//! What an inbox that is told to stop does with messages that wait for their turn at the database.

use std::{sync::Arc, time::Duration};

use inbox_tests::{Step, TestBroker, TestDatabase, World, eventually, suite};
use tokio::sync::Semaphore;

suite!(
    f78_what_was_acknowledged_before_its_turn_is_handled,
    f78_what_waits_for_its_turn_is_given_back,
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

/// Under at_most_once nobody else gets the message, so a drain has to wait for it.
async fn f78_what_was_acknowledged_before_its_turn_is_handled<B: TestBroker, D: TestDatabase>() {
    let (world, gate) = occupied::<B, D>().await;
    world.publish("m1").await;
    // Between the look at the database and the acknowledgement somebody else gets the database.
    let (asked, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    world.flaky.watch_acks({
        let (asked, go) = (asked.clone(), go.clone());
        move || {
            let (asked, go) = (asked.clone(), go.clone());
            async move {
                asked.add_permits(1);
                go.acquire().await.expect("open").forget();
            }
        }
    });
    let at_most_once = world.inbox(&["at-most-once"]).await.spawn();
    asked.acquire().await.expect("open").forget();
    let billing = world.inbox(&["billing"]).await.spawn();
    eventually("billing has begun", async || world.probe.runs("billing", "m1") == 1).await;
    go.add_permits(2);
    eventually("it is acknowledged", || world.settled("at-most-once")).await;
    at_most_once.stop();
    tokio::task::yield_now().await;
    gate.add_permits(1);
    let report = at_most_once.join().await.expect("a clean end");
    assert_eq!((report.processed, report.failed, report.acked), (1, 0, 1), "{report}");
    assert_eq!(world.database.effects("at-most-once", "m1").await, 1);
    billing.stop();
    billing.join().await.expect("a clean end");
    world.assert_done("billing", "m1").await;
}

/// Under the others it doesn't wait: the message goes back, and no attempt is counted.
async fn f78_what_waits_for_its_turn_is_given_back<B: TestBroker, D: TestDatabase>() {
    let (world, gate) = occupied::<B, D>().await;
    world.publish("m1").await;
    let billing = world.inbox(&["billing"]).await.spawn();
    eventually("billing has begun", async || world.probe.runs("billing", "m1") == 1).await;
    let shipping = world.inbox(&["shipping"]).await.spawn();
    eventually("shipping has the message or is through", async || {
        let settled = world.broker.settled("shipping", "order.created").await;
        settled.is_some_and(|settled| settled.waiting == 0)
    })
    .await;
    shipping.stop();
    // It ends while billing still has the database, and before the shutdown timeout of 25 s.
    let joined = tokio::time::timeout(Duration::from_secs(15), shipping.join()).await;
    let report = joined.expect("an end in time").expect("a clean end");
    assert_eq!((report.failed, report.deferred), (0, 0), "{report}");
    gate.add_permits(1);
    billing.stop();
    billing.join().await.expect("a clean end");
    // Its lease of 30 s has not run out: it is there because it was given back.
    let mut next = world.inbox(&["shipping"]).await;
    next.run_until_idle().await.expect("the broker");
    world.assert_done("shipping", "m1").await;
    assert!(world.settled("shipping").await);
    assert_eq!(world.probe.runs("shipping", "m1"), 1);
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
}
