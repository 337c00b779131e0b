//! The same message twice: published twice, or redelivered because its acknowledgement was lost.

use std::sync::{Arc, Mutex};

use inbox_runtime::{Inbox, Outcome};
use inbox_tests::{Order, Settled, Step, TestBroker, TestDatabase, World, eventually, next, nothing_more, suite};

suite!(
    a1_delivered_often_handled_once,
    a2a_b3_f20_two_stored_copies_with_one_nats_msg_id_have_one_effect,
    a2c_b3_f40_l3_a_lost_ack_makes_a_duplicate_that_is_settled,
    b5_nothing_is_acknowledged_before_the_commit,
    b11_the_table_of_two_deliveries,
    b12_a_duplicate_is_not_handled_and_not_delivered_a_third_time,
    b20_the_commit_comes_before_the_ack_and_without_it_there_is_none,
    f41_a_duplicate_is_settled_however_often_its_ack_is_lost,
    l1_l2_a_failing_message_and_the_one_behind_it_are_left_to_the_next_consumer,
    l5_without_its_row_an_old_message_is_new,
);

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

async fn a2a_b3_f20_two_stored_copies_with_one_nats_msg_id_have_one_effect<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for _ in 0..2 {
        let copy = Order::new("o1").to("order.created").header("Nats-Msg-Id", "evt-1");
        world.broker.publish(copy).await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(world.probe.runs("billing", "evt-1"), 1);
    world.assert_done("billing", "evt-1").await;
    assert!(world.settled("billing").await);
    assert_eq!(world.letters("billing").await, []);
}

async fn a2c_b3_f40_l3_a_lost_ack_makes_a_duplicate_that_is_settled<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.flaky.lose_acks(1);
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(unsettled(&world, "billing").await, 1);
    assert_eq!((inbox.report().acked, inbox.report().ack_failures), (0, 1));

    // The consumer is dropped, and another one takes its place.
    drop(inbox);
    world.lease_runs_out().await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(world.probe.runs("billing", "m1"), 1);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

async fn b5_nothing_is_acknowledged_before_the_commit<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Hang);
    let mut inbox = world.inbox(&["billing"]).await;
    begin_and_drop(&world, &mut inbox).await;
    drop(inbox);
    assert_eq!(unsettled(&world, "billing").await, 1);
    world.assert_untouched("billing", "m1").await;

    world.probe.script(|_| Step::Ok);
    world.lease_runs_out().await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert!(world.settled("billing").await);
}

/// Lets the handler begin, and drops the delivery while it runs.
async fn begin_and_drop<B: TestBroker, D: TestDatabase>(world: &World<B, D>, inbox: &mut Inbox) {
    tokio::select! {
        outcome = next(inbox) => panic!("it hangs, and yet ended with {outcome}"),
        () = eventually("the handler runs", async || world.probe.total() == 1) => {}
    }
}

async fn b11_the_table_of_two_deliveries<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world.inbox(&["billing"]).await;
    let mut lines = Vec::new();
    for delivery in 1..=2 {
        world.publish("m1").await;
        let outcome = next(&mut inbox).await;
        lines.push(format!(
            "delivery {delivery}: processed={:<5} duplicate={:<6} committed={:<6} invoices={}",
            python(outcome == Outcome::Processed),
            python(outcome == Outcome::Duplicate),
            python(world.settled("billing").await),
            world.database.effects("billing", "m1").await,
        ));
    }
    assert_eq!(
        lines,
        [
            "delivery 1: processed=True  duplicate=False  committed=True   invoices=1",
            "delivery 2: processed=False duplicate=True   committed=True   invoices=1",
        ]
    );
}

fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

async fn b12_a_duplicate_is_not_handled_and_not_delivered_a_third_time<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.database.inbox("billing", "m1").await, 1, "there is a row to find");
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert!(world.settled("billing").await);
    assert_eq!(world.probe.runs("billing", "m1"), 1);
    drop(inbox);
    world.lease_runs_out().await;
    let mut third = world.inbox(&["billing"]).await;
    nothing_more(&mut third).await;
}

/// A deferred constraint, so that the commit itself fails.
const DEFERRED: &str = "CREATE TABLE parents (id INTEGER PRIMARY KEY); CREATE TABLE children (parent INTEGER NOT NULL \
                        REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)";

async fn b20_the_commit_comes_before_the_ack_and_without_it_there_is_none<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.database.exec(DEFERRED).await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 => Step::Exec("INSERT INTO children (parent) VALUES (1)"),
        _ => Step::Ok,
    });
    // What another connection sees of the message whenever an acknowledgement is about to be sent.
    let seen = Arc::new(Mutex::new(Vec::new()));
    world.flaky.watch_acks({
        let (database, seen) = (world.database.clone(), seen.clone());
        move || {
            let (database, seen) = (database.clone(), seen.clone());
            async move {
                let now = (
                    database.inbox("billing", "m1").await,
                    database.effects("billing", "m1").await,
                );
                seen.lock().expect("a lock").push(now);
            }
        }
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed, "the commit is refused");
    world.assert_untouched("billing", "m1").await;
    assert_eq!(*seen.lock().expect("a lock"), [], "no commit, no ack");
    assert_eq!(unsettled(&world, "billing").await, 1);

    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(
        *seen.lock().expect("a lock"),
        [(1, 1)],
        "committed when it is acknowledged"
    );
    assert!(world.settled("billing").await);
}

async fn f41_a_duplicate_is_settled_however_often_its_ack_is_lost<B: TestBroker, D: TestDatabase>() {
    // With the runs that a handler has when the first ack and those of three redeliveries are lost.
    for (group, runs, effects) in [
        ("billing", 1, 1),
        ("manual", 1, 1),
        ("at-least-once", 5, 5),
        ("on-persist", 5, 5),
        ("at-most-once", 1, 1),
    ] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world.flaky.lose_acks(4);
        let mut inbox = world.inbox(&[group]).await;
        for _ in 0..4 {
            next(&mut inbox).await;
            assert_eq!(unsettled(&world, group).await, 1, "{group}");
            world.lease_runs_out().await;
        }
        next(&mut inbox).await;
        assert!(world.settled(group).await, "{group}");
        assert_eq!(world.probe.runs(group, "m1"), runs, "{group}");
        assert_eq!(world.database.effects(group, "m1").await, effects, "{group}");
        world.lease_runs_out().await;
        nothing_more(&mut inbox).await;
    }
}

async fn l1_l2_a_failing_message_and_the_one_behind_it_are_left_to_the_next_consumer<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.publish("m2").await;
    world.probe.script(|_| Step::Fail("halfway"));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    drop(inbox);
    for id in ["m1", "m2"] {
        world.assert_untouched("billing", id).await;
    }
    assert_eq!(unsettled(&world, "billing").await, 2);

    world.probe.script(|_| Step::Ok);
    world.lease_runs_out().await;
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.acked), (2, 2), "{report}");
    let order: Vec<_> = world.probe.calls().into_iter().map(|call| call.id).collect();
    assert_eq!(order, ["m1", "m1", "m2"]);
    for id in ["m1", "m2"] {
        world.assert_done("billing", id).await;
    }
    assert!(world.settled("billing").await);
}

async fn l5_without_its_row_an_old_message_is_new<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world
        .database
        .exec("DELETE FROM inbox_events WHERE consumer_group = 'billing' AND message_id = 'm1'")
        .await;
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.database.effects("billing", "m1").await, 2);
    assert_eq!(world.database.inbox("billing", "m1").await, 1);
    assert!(world.settled("billing").await);
}

/// How many of a group's messages of `order.created` the broker reports as unsettled.
async fn unsettled<B: TestBroker, D: TestDatabase>(world: &World<B, D>, group: &str) -> u64 {
    let Settled { waiting, unacked } = world
        .broker
        .settled(group, "order.created")
        .await
        .expect("a known group");
    waiting + unacked
}
