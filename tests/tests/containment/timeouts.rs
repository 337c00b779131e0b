//! Handlers that hang or block their thread: the timeout is a failed attempt, and the worker goes on.

use std::time::Duration;

use inbox_runtime::{DeadLetterReason, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, eventually, lean_suite, next};

use super::panics::goes_on;

lean_suite!(
    f76_a_timeout_is_a_failed_attempt,
    f76_timeouts_in_a_long_statement_leave_the_worker_alive,
    f77_blocking_handlers_do_no_harm,
);

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

/// Two threads, four workers, and handlers that block their thread for longer than the ack-wait: leases run out and
/// messages are redelivered, and still each effect exists once.
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
