//! The users' test kit: a harness that crashes leaves behind what a killed process leaves behind, and what an assertion says
//! when it fails.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::{FutureExt, StreamExt};
use inbox_runtime::{
    Handled, InboxBuilder, Message, Outcome,
    testing::{Harness, Point, TempSqlite},
};
use inbox_tests::{
    Order, Probe, Step, TestDatabase,
    crashes::{Row, Seen, headings},
    database_suite,
};

database_suite!(
    a_crash_at_any_point_leaves_behind_what_a_killed_process_does,
    outcomes_are_told_once_and_for_each_delivery,
    harnesses_beside_each_other_know_nothing_of_each_other,
    back_offs_and_leases_are_passed_on_the_clock_of_the_broker,
    a_message_can_be_delivered_again_after_its_acknowledgement,
    what_fails_says_what_was_expected_and_what_was_there,
);

/// A harness that runs the shared handler of a group.
struct World<D: TestDatabase> {
    database: D,
    probe: Probe,
    inbox: Harness<D::Pool>,
}

impl<D: TestDatabase> World<D> {
    async fn new(group: &'static str) -> Self {
        Self::on(D::fresh().await, group).await
    }

    async fn on(database: D, group: &'static str) -> Self {
        let probe = Probe::default();
        let state = probe.clone();
        let configure = move |inbox: InboxBuilder| {
            let inbox = inbox.groups([group]).state(state.clone());
            inbox.select(|meta| {
                let module = meta.name.strip_prefix("inbox_tests::handlers::");
                module.is_some_and(|rest| rest.starts_with(D::HANDLERS))
            })
        };
        let inbox = Harness::start(&database.pool(), configure).await;
        Self { database, probe, inbox }
    }

    async fn publish(&self, id: &str) {
        let message = Order::new(format!("order-{id}")).to("order.created").id(id.to_owned());
        self.inbox.publish(message).await;
    }
}

/// What a test that failed has said.
async fn said(failing: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(failing)
        .catch_unwind()
        .await
        .expect_err("it should fail");
    panic.downcast_ref::<String>().expect("a text").clone()
}

fn point(name: &'static str) -> Point {
    let ours = Point::ALL.into_iter().find(|point| point.as_str() == name);
    ours.unwrap_or(Point::Handler(name))
}

/// A row of the crash table, played with a harness in place of processes. The rows share a database: each has ids of its
/// own.
async fn play<D: TestDatabase>(database: D, number: usize, row: Row) {
    let mut world = World::<D>::on(database, row.group).await;
    let (first_id, second_id) = (format!("m1-{number}"), format!("m2-{number}"));
    if row.message == "bad" {
        let message = Message::new("order.created", "{").id(first_id.clone());
        world.inbox.publish(message).await;
    } else {
        world.publish(&first_id).await;
    }
    world.publish(&second_id).await;
    if row.message == "fail" {
        let fails = first_id.clone();
        world.probe.script(move |call| match call.id == fails {
            true => Step::Fail("as told"),
            false => Step::Ok,
        });
    }

    let (last, first) = row.points.split_last().expect("a point");
    for name in first {
        world.inbox.crash_at(point(name)).await;
    }
    if let Some(left) = row.left {
        world.inbox.crash_at(point(last)).await;
        let consumer = world.inbox.broker().consumer(row.group, "order.created").await;
        let consumer = consumer.expect("the broker").expect("the consumer");
        let there = consumer.waiting + consumer.ack_pending;
        assert_eq!(there, left, "left at the broker after the crash: {row:#?}");
        assert_eq!(
            seen(&world, &row, &first_id).await,
            row.killed,
            "after the crash: {row:#?}"
        );
        world.inbox.run_until_settled().await;
    } else {
        let text = said(world.inbox.crash_at(point(last))).await;
        let expected = format!("expected a crash at {last}, but no message reached it");
        assert!(text.starts_with(&expected), "{text}");
    }
    assert_eq!(seen(&world, &row, &first_id).await, row.ended, "in the end: {row:#?}");
    assert_eq!(
        world.probe.runs(row.group, &first_id) as usize,
        row.runs,
        "runs: {row:#?}"
    );
    assert_eq!(world.database.effects(row.group, &second_id).await, 1, "{row:#?}");
    world.inbox.assert_acked(&first_id).await;
    world.inbox.assert_acked(&second_id).await;
}

async fn seen<D: TestDatabase>(world: &World<D>, row: &Row, id: &str) -> Seen {
    let letters = format!("SELECT count(*) FROM inbox_dead_letters WHERE message_id = '{id}'");
    Seen {
        effects: world.database.effects(row.group, id).await,
        inbox: world.database.inbox(row.group, id).await,
        letters: world.inbox.count(&letters).await,
    }
}

async fn a_crash_at_any_point_leaves_behind_what_a_killed_process_does<D: TestDatabase>() {
    let database = D::fresh().await;
    let rows = headings().into_iter().flat_map(Row::section).enumerate();
    let plays = rows.map(|(number, row)| play(database.clone(), number, row));
    futures_util::stream::iter(plays)
        .buffer_unordered(6)
        .collect::<()>()
        .await;
}

async fn outcomes_are_told_once_and_for_each_delivery<D: TestDatabase>() {
    let mut world = World::<D>::new("billing").await;
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m1", 1) => Step::Fail("the first run"),
        ("m2", _) => Step::Return(Handled::Skipped),
        _ => Step::Ok,
    });
    for id in ["m1", "m2", "m2"] {
        world.publish(id).await;
    }
    // What was handled on the way to another message is remembered.
    assert_eq!(world.inbox.outcome("m2").await, Outcome::Skipped);
    assert_eq!(world.inbox.outcome("m2").await, Outcome::Duplicate);
    world.inbox.assert_outcome("m1", Outcome::Failed).await;
    world.inbox.assert_outcome("m1", Outcome::Processed).await;
    assert_eq!(world.probe.total(), 3);
}

/// The points are armed for one task; that another test crashes at them is nothing to this one.
async fn harnesses_beside_each_other_know_nothing_of_each_other<D: TestDatabase>() {
    let crash = async {
        let mut world = World::<D>::new("billing").await;
        for round in 1..=5 {
            world.publish("m1").await;
            world.inbox.crash_at(Point::AfterDecode).await;
            assert_eq!(world.inbox.run_until_settled().await.acked, 1, "round {round}");
        }
    };
    let peace = async {
        let mut world = World::<D>::new("billing").await;
        for round in 1..=20 {
            world.publish(&format!("m{round}")).await;
            assert_eq!(world.inbox.run_until_settled().await.processed, 1, "round {round}");
        }
    };
    tokio::join!(crash, peace);
}

async fn back_offs_and_leases_are_passed_on_the_clock_of_the_broker<D: TestDatabase>() {
    let mut world = World::<D>::new("billing").await;
    world.probe.script(|call| match call.run {
        1 => Step::RetryAfter(Duration::from_secs(3_600)),
        _ => Step::Ok,
    });
    world.publish("m1").await;
    let start = std::time::Instant::now();
    world.inbox.assert_outcome("m1", Outcome::Failed).await;
    world.inbox.assert_not_acked("m1").await;
    world.inbox.advance_clock(Duration::from_secs(3_600));
    world.inbox.crash_at(Point::BeforeAck).await;
    world.inbox.assert_outcome("m1", Outcome::Duplicate).await;
    // Not the hour that it was to wait.
    assert!(start.elapsed() < Duration::from_secs(600), "{:?}", start.elapsed());
}

async fn a_message_can_be_delivered_again_after_its_acknowledgement<D: TestDatabase>() {
    for (group, again, runs) in [
        ("billing", Outcome::Duplicate, 1),
        ("at-least-once", Outcome::Processed, 2),
    ] {
        let mut world = World::<D>::new(group).await;
        world.publish("m1").await;
        world.inbox.assert_outcome("m1", Outcome::Processed).await;
        world.inbox.assert_acked("m1").await;
        world.inbox.redeliver("m1").await;
        world.inbox.assert_not_acked("m1").await;
        world.inbox.assert_outcome("m1", again).await;
        world.inbox.assert_acked("m1").await;
        assert_eq!(world.probe.runs(group, "m1"), runs);
        let consumer = world.inbox.broker().consumer(group, "order.created").await;
        assert_eq!(consumer.expect("the broker").expect("the consumer").acked, 1);
    }
}

async fn what_fails_says_what_was_expected_and_what_was_there<D: TestDatabase>() {
    let mut world = World::<D>::new("billing").await;
    world.probe.script(|_| Step::Permanent("no such customer"));
    let handler = format!("inbox_tests::handlers::{}::billing", D::HANDLERS);

    let unknown = format!(
        "no handler was sent a message of that id ({handler} takes `order.created`); was it published, and to that subject?; \
         until now: nothing (tests/tests/test_kit.rs:"
    );
    world.inbox.publish(Message::new("order.create", "{}").id("m1")).await;
    let text = said(world.inbox.outcome("m1").map(|_| ())).await;
    assert!(
        text.starts_with(&format!("expected a delivery of `m1`, but {unknown}")),
        "{text}"
    );
    let text = said(world.inbox.assert_acked("m1")).await;
    assert!(
        text.starts_with(&format!("expected `m1` to be acknowledged, but {unknown}")),
        "{text}"
    );

    world.publish("m2").await;
    let waits =
        format!("but `m2` waits for its first delivery to {handler}; until now: nothing (tests/tests/test_kit.rs:");
    let text = said(world.inbox.redeliver("m2")).await;
    let expected = "expected `m2` to have been delivered before it is redelivered, ";
    assert!(text.starts_with(&format!("{expected}{waits}")), "{text}");
    let text = said(world.inbox.assert_acked("m2")).await;
    assert!(
        text.starts_with(&format!("expected `m2` to be acknowledged, {waits}")),
        "{text}"
    );

    let happened = format!("`m2` was dead_lettered by {handler} (no such customer)");
    let text = said(world.inbox.assert_outcome("m2", Outcome::Processed)).await;
    assert!(
        text.starts_with(&format!("expected `m2` to be processed, but {happened} (tests/")),
        "{text}"
    );
    let text = said(world.inbox.assert_not_acked("m2")).await;
    let acked =
        format!("expected `m2` not to be acknowledged, but {handler} has acknowledged `m2`; until now: {happened} (");
    assert!(text.starts_with(&acked), "{text}");
    let text = said(world.inbox.assert_count("SELECT count(*) FROM effects", 1)).await;
    let counted = format!("expected 1 from `SELECT count(*) FROM effects`, but there are 0; until now: {happened} (");
    assert!(text.starts_with(&counted), "{text}");
    let text = said(world.inbox.assert_count("SELECT count(*) FROM nothing", 1)).await;
    assert!(
        text.starts_with("expected 1 from `SELECT count(*) FROM nothing`, but it failed: "),
        "{text}"
    );

    world.publish("m3").await;
    let text = said(world.inbox.crash_at(Point::AfterCommit)).await;
    let points = "expected a crash at after_commit, but no message reached it; points that were reached: after_decode, \
                  after_begin, after_claim, in_handler, before_seal, in_dead_letter, before_ack, after_ack; until now: ";
    assert!(text.starts_with(points), "{text}");

    let start = Harness::start(&D::fresh().await.pool(), |inbox| inbox.groups(["no-such-group"]));
    let text = said(async { drop(start.await) }).await;
    assert!(text.starts_with("the inbox can't start, for 2 reasons:\n"), "{text}");
}

#[tokio::test]
async fn a_temporary_database_is_gone_with_its_value() {
    let database = TempSqlite::new("CREATE TABLE invoices (order_id TEXT)").await;
    let file = database.pool().connect_options().get_filename().to_owned();
    assert!(file.exists());
    drop(database);
    assert!(!file.exists());
    let text = said(async { drop(TempSqlite::new("CREATE TABEL invoices").await) }).await;
    assert!(
        text.starts_with("a database for the test could not be made: "),
        "{text}"
    );
}
