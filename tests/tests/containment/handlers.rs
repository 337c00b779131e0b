//! Handlers that panic, hang, block their thread or are dropped.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use inbox_runtime::{DeadLetterReason, Inbox, Message, Outcome};
use inbox_tests::{Order, Step, TestBroker, TestDatabase, World, eventually, lean_suite, next};

lean_suite!(
    f75_a_panic_is_a_failed_attempt,
    f75_a_panic_in_deserialize_is_a_failed_attempt,
    f75_a_panic_in_deserialize_at_most_once,
    f75_a_duplicate_whose_deserialize_panics_is_a_duplicate,
    f75_a_panic_in_the_drop_of_an_argument,
    f75_panics_leave_a_spawned_worker_alive,
    f02_a_delivery_dropped_anywhere_leaves_nothing_open,
    f76_a_timeout_is_a_failed_attempt,
    f76_timeouts_in_a_long_statement_leave_the_worker_alive,
    f76_a_dropped_process_one_rolls_back,
    f77_blocking_handlers_do_no_harm,
);

/// The worker goes on, on a clean connection.
async fn goes_on<B: TestBroker, D: TestDatabase>(world: &World<B, D>, inbox: &mut Inbox, group: &str) {
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

/// A version of the program that can't read it came after the one that has handled it.
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

/// Polls `process_one` a number of times, drops it, and does so for every number up to one that is enough.
async fn f02_a_delivery_dropped_anywhere_leaves_nothing_open<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let ack_wait = Duration::from_secs(2);
    let mut inbox = world
        .builder(&["billing"])
        .ack_wait(ack_wait)
        .build()
        .await
        .expect("an inbox");
    let (mut dropped, mut completed) = (0, 0);
    for polls in 1..200 {
        let id = format!("m{polls}");
        world.publish(&id).await;
        let done = {
            let mut delivery = pin!(inbox.process_one(Duration::from_secs(5)));
            let mut left = polls;
            poll_fn(|context| {
                left -= 1;
                match delivery.as_mut().poll(context) {
                    Poll::Ready(outcome) => Poll::Ready(Some(outcome.expect("the broker"))),
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        if done.is_none() {
            dropped += 1;
            // Another connection sees nothing of it, or all of it.
            let difference = format!(
                "SELECT (SELECT count(*) FROM effects WHERE msg_id = '{id}') - \
                 (SELECT count(*) FROM inbox_events WHERE message_id = '{id}')"
            );
            assert_eq!(world.database.number(&difference).await, 0, "after {polls} polls");
            world.broker.pass(ack_wait).await;
            let outcome = inbox.process_one(Duration::from_secs(1)).await.expect("the broker");
            // Nothing comes if it was dropped behind its acknowledgement.
            let as_expected = matches!(outcome, None | Some(Outcome::Processed | Outcome::Duplicate));
            assert!(as_expected, "{outcome:?} after {polls} polls");
            assert!(world.settled("billing").await, "after {polls} polls");
        }
        world.assert_done("billing", &id).await;
        // How many polls a delivery takes depends on how busy the machine is, so one that ended is not the end yet.
        completed = if done.is_some() { completed + 1 } else { 0 };
        if completed == 5 {
            break;
        }
    }
    assert!(dropped >= 3, "it was dropped at {dropped} places only");
    assert!(world.settled("billing").await);
}

async fn f76_a_timeout_is_a_failed_attempt<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|_| Step::Hang);
    let mut inbox = world.inbox(&["hasty"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
        world.assert_untouched("hasty", "m1").await;
    }
    let letter = world.letter("hasty").await;
    assert_eq!((letter.reason, letter.attempts), (DeadLetterReason::Exhausted, 3));
    assert_eq!(letter.error, "the handler took longer than its timeout of 1s");
    goes_on(&world, &mut inbox, "hasty").await;
}

async fn f76_timeouts_in_a_long_statement_leave_the_worker_alive<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Exec(D::SLOW));
    let mut inbox = world.inbox(&["hasty"]).await;
    for number in 0..8 {
        world.publish(&format!("slow{number}")).await;
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
        world.assert_untouched("hasty", &format!("slow{number}")).await;
        assert!(!world.settled("hasty").await);
        // It isn't handled a second time: the test is about the statement's end.
        world.probe.script(|call| match call.run {
            1 => Step::Exec(D::SLOW),
            _ => Step::Ok,
        });
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        world.assert_done("hasty", &format!("slow{number}")).await;
    }
    world.probe.script(|_| Step::Ok);
    for number in 0..20 {
        world.publish(&format!("m{number}")).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 28);
    assert!(world.settled("hasty").await);
}

async fn f76_a_dropped_process_one_rolls_back<B: TestBroker, D: TestDatabase>() {
    for step in [Step::Hang, Step::Exec(D::SLOW)] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world
            .probe
            .script(move |call| if call.run == 1 { step.clone() } else { Step::Ok });
        let ack_wait = Duration::from_secs(2);
        let mut inbox = world
            .builder(&["billing"])
            .ack_wait(ack_wait)
            // The statement that was dropped goes on for a while.
            .lock_wait(Duration::from_secs(20))
            .build()
            .await
            .expect("an inbox");
        tokio::select! {
            outcome = inbox.process_one(Duration::from_secs(5)) => panic!("it came to an end: {outcome:?}"),
            () = eventually("the handler runs", || async { world.probe.total() == 1 }) => {}
        }
        world.assert_untouched("billing", "m1").await;
        world.broker.pass(ack_wait).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        world.assert_done("billing", "m1").await;
        assert_eq!(world.probe.runs("billing", "m1"), 2);
        assert!(world.settled("billing").await);
    }
}

/// Two threads, four workers, and handlers that block their thread for longer than the ack-wait: leases run out and
/// messages come again, and still each effect exists once.
async fn f77_blocking_handlers_do_no_harm<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Block(Duration::from_millis(1_500)));
    for number in 0..4 {
        world.publish(&format!("m{number}")).await;
    }
    let ack_wait = Duration::from_secs(1);
    let handle = world
        .builder(&["audit"])
        .ack_wait(ack_wait)
        .spawn()
        .await
        .expect("an inbox");
    eventually("everything is settled", || async {
        world.broker.settled("audit", ">").await == Some(inbox_tests::Settled::ALL)
    })
    .await;
    for number in 0..4 {
        world.assert_done("audit", &format!("m{number}")).await;
    }
    // It recovers.
    world.probe.script(|_| Step::Ok);
    world.publish("sound").await;
    eventually("the next one is done", || async {
        world.database.effects("audit", "sound").await == 1
    })
    .await;
    assert!(handle.health().ready, "{:?}", handle.health());
    handle.stop();
    let report = handle.join().await.expect("stopped");
    assert_eq!((report.processed, report.dead_lettered), (5, 0), "{report}");
}

/// On SQLite a statement that its handler doesn't wait for any more would keep the file's only write lock.
mod sqlite {
    use inbox_tests::{EmbeddedMemory, SqliteFile};

    use super::*;

    const ENDLESS: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    const ENDLESS_WRITE: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                                 INSERT INTO effects (grp, msg_id) SELECT 'endless', i FROM n";

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f76_an_endless_statement_is_stopped() {
        for sql in [ENDLESS, ENDLESS_WRITE] {
            let world = World::<EmbeddedMemory, SqliteFile>::new().await;
            world.publish("m1").await;
            world.probe.script(move |_| Step::Exec(sql));
            let mut inbox = world.inbox(&["hasty"]).await;
            for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
                assert_eq!(next(&mut inbox).await, outcome);
                assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 0);
            }
            goes_on(&world, &mut inbox, "hasty").await;
        }
    }
}
