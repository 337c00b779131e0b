//! A handler that blocks its thread while the inbox is stopped: it is left behind, and nothing of it is committed afterwards.

use std::{sync::Arc, time::Duration};

use inbox_runtime::{Error, InboxHandle};
use inbox_tests::{Latch, Step, TestBroker, TestDatabase, World, eventually, lean_suite};
use tokio::time::timeout;

lean_suite!(
    g43_a_handler_that_blocks_its_thread_is_left_behind,
    g43_a_failure_of_a_handler_that_was_left_behind_is_not_counted,
    g43_a_handler_that_was_left_behind_at_most_once,
    g43_the_others_are_released,
    g43_a_handler_that_returns_in_time_is_not_left_behind,
);

/// Longer than any stop takes on a busy machine, and shorter than a latch blocks.
const IN_TIME: Duration = Duration::from_mins(2);

/// How long the lease of the message that is left behind lasts.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// Starts an inbox whose handlers block their threads.
async fn blocked<B: TestBroker, D: TestDatabase>(
    world: &World<B, D>,
    group: &str,
    after: Step,
) -> (InboxHandle, Latch) {
    let latch = Latch::default();
    let (block, after) = (Step::BlockUntil(latch.clone()), Arc::new(after));
    world.probe.script(move |call| match call.run {
        1 => Step::Then(Box::new(block.clone()), Box::new((*after).clone())),
        _ => Step::Ok,
    });
    world.publish("m1").await;
    let builder = world.builder(&[group]).ack_wait(ACK_WAIT);
    let builder = builder.shutdown_timeout(Duration::from_millis(100));
    let handle = builder.spawn().await.expect("an inbox");
    eventually("the handler has begun", async || world.probe.runs(group, "m1") == 1).await;
    (handle, latch)
}

/// Stops the inbox, which leaves the handler behind and names it.
async fn stop(handle: InboxHandle, group: &str) {
    handle.stop();
    let joined = timeout(IN_TIME, handle.join()).await.expect("an end in time");
    let error = joined.expect_err("a handler is left behind");
    assert!(matches!(error, Error::Blocked(_)), "{error}");
    let text = error.to_string();
    let name = format!("::{}`", group.replace('-', "_"));
    for part in [&*name, "`m1`", "blocks its thread", "spawn_blocking"] {
        assert!(text.contains(part), "{text}");
    }
}

/// The handler returns, and another inbox gets the message. What the first did is not there.
async fn is_redelivered<B: TestBroker, D: TestDatabase>(world: &World<B, D>, group: &str, latch: &Latch) {
    world.assert_untouched(group, "m1").await;
    latch.open();
    eventually("the handler returns", async || latch.passed() == 1).await;
    world.broker.pass(ACK_WAIT).await;
    let handle = world.builder(&[group]).spawn().await.expect("an inbox");
    eventually("the message is settled", || world.settled(group)).await;
    handle.stop();
    let report = handle.join().await.expect("a clean end");
    assert_eq!((report.processed, report.duplicate), (1, 0), "{report}");
    assert_eq!(world.probe.runs(group, "m1"), 2);
    world.assert_done(group, "m1").await;
}

async fn g43_a_handler_that_blocks_its_thread_is_left_behind<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (handle, latch) = blocked(&world, "billing", Step::Ok).await;
    stop(handle, "billing").await;
    is_redelivered(&world, "billing", &latch).await;
}

async fn g43_a_failure_of_a_handler_that_was_left_behind_is_not_counted<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (handle, latch) = blocked(&world, "billing", Step::Permanent("too late")).await;
    stop(handle, "billing").await;
    is_redelivered(&world, "billing", &latch).await;
    assert_eq!(world.letters("billing").await.len(), 0);
}

/// It was acknowledged before it began, so a rollback loses it.
async fn g43_a_handler_that_was_left_behind_at_most_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (handle, latch) = blocked(&world, "at-most-once", Step::Ok).await;
    stop(handle, "at-most-once").await;
    latch.open();
    eventually("the handler returns", async || latch.passed() == 1).await;
    // On SQLite it holds the write lock until it is rolled back; elsewhere there is nothing to wait for.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.database.effects("at-most-once", "m1").await, 0);
    assert!(world.settled("at-most-once").await);
}

/// A handler that waits is dropped and its message released, as without the one that blocks.
async fn g43_the_others_are_released<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("order.created").await;
    let latch = Latch::default();
    let block = Step::BlockUntil(latch.clone());
    world.probe.script(move |call| match (&*call.id, call.run) {
        ("m1", 1) => block.clone(),
        (_, 1) => Step::Hang,
        _ => Step::Ok,
    });
    // Longer than `eventually` waits.
    let builder = world.builder(&["audit"]).ack_wait(Duration::from_secs(300));
    let handle = builder
        .shutdown_timeout(Duration::from_millis(100))
        .spawn()
        .await
        .expect("an inbox");
    world.publish("m1").await;
    eventually("the one blocks", async || world.probe.runs("audit", "m1") == 1).await;
    world.publish("m2").await;
    eventually("the other is there", async || {
        let settled = world.broker.settled("audit", ">").await;
        settled.is_some_and(|settled| settled.waiting == 0)
    })
    .await;
    stop(handle, "audit").await;
    // SQLite's writers wait for the one that is left behind.
    latch.open();
    world.probe.script(|_| Step::Ok);
    let other = world.builder(&["audit"]).spawn().await.expect("another inbox");
    eventually("the other is done", async || {
        world.database.effects("audit", "m2").await == 1
    })
    .await;
    other.stop();
    other.join().await.expect("a clean end");
}

/// It blocks beyond the shutdown timeout, but not for long: it is rolled back like one that waits.
async fn g43_a_handler_that_returns_in_time_is_not_left_behind<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (handle, latch) = blocked(&world, "billing", Step::Ok).await;
    handle.stop();
    tokio::time::sleep(Duration::from_millis(200)).await;
    latch.open();
    let joined = timeout(IN_TIME, handle.join()).await.expect("an end in time");
    joined.expect("a clean end");
}
