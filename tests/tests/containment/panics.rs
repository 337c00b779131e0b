//! Handlers that panic: in their body, in an argument, in a destructor.

use inbox_runtime::{DeadLetterReason, Inbox, Message, Outcome};
use inbox_tests::{Order, Step, TestBroker, TestDatabase, World, eventually, lean_suite, next};

lean_suite!(
    f75_a_panic_is_a_failed_attempt,
    f75_a_panic_in_deserialize_is_a_failed_attempt,
    f75_a_panic_in_deserialize_at_most_once,
    f75_a_duplicate_whose_deserialize_panics_is_a_duplicate,
    f75_a_panic_in_the_drop_of_an_argument,
    f75_panics_leave_a_spawned_worker_alive,
);

/// The worker handles the next message, on a clean connection.
pub(crate) async fn goes_on<B: TestBroker, D: TestDatabase>(world: &World<B, D>, inbox: &mut Inbox, group: &str) {
    world.probe.script(|_| Step::Ok);
    world.publish("sound").await;
    assert_eq!(next(inbox).await, Outcome::Processed, "{group}");
    world.assert_done(group, "sound").await;
    assert!(world.settled(group).await, "{group}");
}

async fn f75_a_panic_is_a_failed_attempt<B: TestBroker, D: TestDatabase>() {
    let drop_after = |next| Step::PanicInDrop(Box::new(next));
    let cases = [
        ("after SQL", Step::Panic("after SQL")),
        ("in a task", Step::PanicInTask("in a task")),
        ("in Drop", drop_after(Step::Ok)),
        ("in Drop", drop_after(Step::Fail("halfway"))),
    ];
    for (text, step) in cases {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world.probe.script(move |_| step.clone());
        fails_three_times(&world, text).await;
    }
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    // The script is asked before the handler's first statement.
    world.probe.script(|_| panic!("before SQL"));
    fails_three_times(&world, "before SQL").await;
}

async fn fails_three_times<B: TestBroker, D: TestDatabase>(world: &World<B, D>, text: &str) {
    let mut inbox = world.inbox(&["billing"]).await;
    for attempts in 1..=3 {
        let outcome = next(&mut inbox).await;
        let last = attempts == 3;
        assert_eq!(
            outcome,
            if last { Outcome::DeadLettered } else { Outcome::Failed },
            "{text}"
        );
        world.assert_untouched("billing", "m1").await;
        assert_eq!(world.attempts("billing").await, attempts, "{text}");
        assert_eq!(world.settled("billing").await, last, "{text}");
    }
    let letter = world.letter("billing").await;
    assert!(
        letter.error.contains("panicked") && letter.error.contains(text),
        "{}",
        letter.error
    );
    goes_on(world, &mut inbox, "billing").await;
}

async fn publish_order<B: TestBroker, D>(world: &World<B, D>, order_id: &str) {
    let order = Order {
        order_id: order_id.to_owned(),
        amount: 1,
    };
    let message = Message::json("order.created", &order).expect("JSON").id("m1");
    world.broker.publish(message).await;
}

async fn f75_a_panic_in_deserialize_is_a_failed_attempt<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish_order(&world, "unreadable").await;
    let mut inbox = world.inbox(&["fragile"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    assert_eq!(world.probe.total(), 0);
    let letter = world.letter("fragile").await;
    assert_eq!((letter.reason, letter.attempts), (DeadLetterReason::Exhausted, 3));
    assert_eq!(letter.error, "an argument panicked: in Deserialize");
    goes_on(&world, &mut inbox, "fragile").await;
}

/// There is no second attempt, and as nothing is acknowledged yet there is a dead letter.
async fn f75_a_panic_in_deserialize_at_most_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish_order(&world, "unreadable").await;
    let mut inbox = world.inbox(&["fragile-once"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(
        world.letter("fragile-once").await.error,
        "an argument panicked: in Deserialize"
    );
    assert!(world.settled("fragile-once").await);
}

/// The version of the program that handled it was replaced by one that can't decode it.
async fn f75_a_duplicate_whose_deserialize_panics_is_a_duplicate<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish_order(&world, "unreadable").await;
    let mut inbox = world.inbox(&["fragile"]).await;
    let sql = "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('fragile', 'm1', 0)";
    world.database.exec(sql).await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(world.attempts("fragile").await, 0);
    assert!(world.settled("fragile").await);
}

async fn f75_a_panic_in_the_drop_of_an_argument<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    publish_order(&world, "undroppable").await;
    let mut inbox = world.inbox(&["fragile"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    world.assert_untouched("fragile", "m1").await;
    assert_eq!(world.attempts("fragile").await, 1);
    // Where the handler doesn't run its arguments are dropped all the same.
    let sql = "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('fragile', 'm1', 0)";
    world.database.exec(sql).await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    goes_on(&world, &mut inbox, "fragile").await;
}

async fn f75_panics_leave_a_spawned_worker_alive<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match &*call.id {
        "m3" => Step::Panic("always"),
        "m5" if call.run == 1 => Step::PanicInDrop(Box::new(Step::Ok)),
        _ => Step::Ok,
    });
    for number in 0..10 {
        world.publish(&format!("m{number}")).await;
    }
    let handle = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("everything is settled", || world.settled("billing")).await;
    assert!(handle.health().ready, "{:?}", handle.health());
    handle.stop();
    let report = handle.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.failed, report.dead_lettered),
        (9, 3, 1),
        "{report}"
    );
    for number in [0, 1, 2, 4, 5, 6, 7, 8, 9] {
        world.assert_done("billing", &format!("m{number}")).await;
    }
}
