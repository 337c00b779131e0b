//! The effect exists once: what the founding documents promise of a delivery, and of the next one.

use std::time::Duration;

use inbox_runtime::Outcome;
use inbox_tests::{Step, TestBroker, TestDatabase, World, next, suite};

suite!(a1_delivered_often_handled_once, b11_the_second_delivery_is_a_duplicate);

async fn a1_delivered_often_handled_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for _ in 0..5 {
        world.publish("m1").await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!(
        (report.processed, report.duplicate, report.acked),
        (1, 4, 5),
        "{report}"
    );
    assert_eq!(world.probe.runs("billing", "m1"), 1);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn b11_the_second_delivery_is_a_duplicate<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m1").await;
    world
        .probe
        .script(|call| if call.run == 1 { Step::Fail("halfway") } else { Step::Ok });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("billing", "m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(
        inbox.process_one(Duration::from_millis(300)).await.expect("the broker"),
        None
    );
    world.assert_done("billing", "m1").await;
}
