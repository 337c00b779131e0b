//! One message for several groups, and one group in several places.

use inbox_runtime::{InboxHandle, Outcome};
use inbox_tests::{Settled, Step, TestBroker, TestDatabase, World, eventually, next, nothing_more, suite};

suite!(
    a11_each_group_handles_the_message_once,
    a12_a_duplicate_in_one_group_is_none_in_another,
    f23_a_group_that_always_fails_hinders_no_other,
    f24_two_runtimes_with_one_group_share_its_messages,
    f24_two_runtimes_with_different_groups_both_handle_the_message,
    l4_a_group_that_comes_later_handles_the_message_too,
);

async fn a11_each_group_handles_the_message_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing", "shipping"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.duplicate), (2, 0), "{report}");
    for group in ["billing", "shipping"] {
        assert_eq!(world.probe.runs(group, "m1"), 1);
        world.assert_done(group, "m1").await;
        assert!(world.settled(group).await);
    }
}

async fn a12_a_duplicate_in_one_group_is_none_in_another<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m1").await;
    let mut billing = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut billing).await, Outcome::Processed);
    assert_eq!(next(&mut billing).await, Outcome::Duplicate);
    world.assert_untouched("shipping", "m1").await;

    let mut shipping = world.inbox(&["shipping"]).await;
    assert_eq!(next(&mut shipping).await, Outcome::Processed);
    assert_eq!(next(&mut shipping).await, Outcome::Duplicate);
    for group in ["billing", "shipping"] {
        world.assert_done(group, "m1").await;
        assert!(world.settled(group).await);
    }
}

async fn f23_a_group_that_always_fails_hinders_no_other<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.group.as_str() {
        "patient" => Step::Fail("for ever"),
        _ => Step::Ok,
    });
    let inbox = world.builder(&["patient", "shipping"]).spawn().await.expect("an inbox");
    for number in 0..20 {
        world.publish(&format!("m{number}")).await;
    }
    eventually("shipping is done", async || world.settled("shipping").await).await;
    eventually("patient has tried again", async || {
        world.probe.runs("patient", "m0") > 1
    })
    .await;
    stop(inbox).await;
    for number in 0..20 {
        let id = format!("m{number}");
        world.assert_done("shipping", &id).await;
        world.assert_untouched("patient", &id).await;
    }
    let patient = world.broker.settled("patient", "order.created").await;
    let unsettled = patient.map(|Settled { waiting, unacked }| waiting + unacked);
    assert_eq!(unsettled, Some(20));
}

async fn f24_two_runtimes_with_one_group_share_its_messages<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let one = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let other = world.builder(&["billing"]).spawn().await.expect("an inbox");
    for number in 0..20 {
        // Two copies, so that both may be at one message at a time.
        world.publish(&format!("m{number}")).await;
        world.publish(&format!("m{number}")).await;
    }
    eventually("everything is settled", async || world.settled("billing").await).await;
    let (one, other) = (one.report(), other.report());
    assert_eq!(one.processed + other.processed, 20, "{one}; {other}");
    assert_eq!(one.failed + other.failed, 0, "{one}; {other}");
    for number in 0..20 {
        let id = format!("m{number}");
        assert_eq!(world.probe.runs("billing", &id), 1);
        world.assert_done("billing", &id).await;
    }
}

async fn f24_two_runtimes_with_different_groups_both_handle_the_message<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let billing = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let shipping = world.builder(&["shipping"]).spawn().await.expect("an inbox");
    for number in 0..10 {
        world.publish(&format!("m{number}")).await;
    }
    for group in ["billing", "shipping"] {
        eventually("everything is settled", async || world.settled(group).await).await;
        for number in 0..10 {
            let id = format!("m{number}");
            assert_eq!(world.probe.runs(group, &id), 1);
            world.assert_done(group, &id).await;
        }
    }
    stop(billing).await;
    stop(shipping).await;
}

async fn l4_a_group_that_comes_later_handles_the_message_too<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut billing = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut billing).await, Outcome::Processed);
    assert!(world.settled("billing").await);

    let mut shipping = world.inbox(&["shipping"]).await;
    assert_eq!(next(&mut shipping).await, Outcome::Processed);
    nothing_more(&mut shipping).await;
    nothing_more(&mut billing).await;
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 2);
    assert!(world.settled("shipping").await);
}

async fn stop(inbox: InboxHandle) {
    inbox.stop();
    inbox.join().await.expect("stopped");
}
