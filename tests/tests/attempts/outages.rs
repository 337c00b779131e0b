//! Outages and locks, which are no message's fault: they never count as an attempt, and the inbox waits for their end.

use std::time::{Duration, Instant};

use inbox_runtime::{Inbox, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, eventually, lean_suite, next};

lean_suite!(
    f79_a_database_that_is_down_is_waited_for,
    f79_a_locked_message_is_waited_for,
    a_handler_that_is_stopped_with_the_program_has_made_no_attempt,
    an_outage_is_no_attempt_of_a_message_that_has_failed_before,
);

async fn f79_a_database_that_is_down_is_waited_for<B: TestBroker, D: TestDatabase>() {
    const MESSAGES: usize = 100;
    let world = World::<B, D>::new().await;
    let handle = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.database.break_down().await;
    let start = Instant::now();
    for number in 0..MESSAGES {
        world.publish(&format!("m{number}")).await;
    }
    eventually("not ready", || async { !handle.health().ready }).await;
    let health = handle.health();
    assert!(health.live, "{health:?}");
    assert!(
        !health.reasons.is_empty() && health.reasons[0].contains("billing"),
        "{health:?}"
    );
    eventually("it is tried again", async || handle.report().deferred >= 3).await;

    let report = handle.report();
    let seconds = start.elapsed().as_secs_f64();
    let tries = f64::from(u32::try_from(report.deferred).expect("few"));
    assert!(tries / seconds < 5.0, "{report} in {seconds} s");
    assert!(world.flaky.pulls() < 10, "nothing more is pulled");
    assert_eq!(
        (report.failed, report.dead_lettered, report.acked),
        (0, 0, 0),
        "{report}"
    );
    assert_eq!(world.probe.total(), 0);

    world.database.repair().await;
    eventually("everything is done", || world.settled("billing")).await;
    assert!(handle.health().ready, "{:?}", handle.health());
    handle.stop();
    let report = handle.join().await.expect("stopped");
    assert_eq!(report.processed, MESSAGES as u64, "{report}");
    let effects = world.database.number("SELECT count(*) FROM effects").await;
    assert_eq!(effects, i64::try_from(MESSAGES).expect("few"));
    assert_eq!(world.letters("billing").await, []);
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
}

async fn f79_a_locked_message_is_waited_for<B: TestBroker, D: TestDatabase>() {
    const MESSAGES: usize = 20;
    let world = World::<B, D>::new().await;
    let handle = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let lock = world.database.lock_claim("billing", "m0").await;
    let start = Instant::now();
    for number in 0..MESSAGES {
        world.publish(&format!("m{number}")).await;
    }
    // SQLite locks the whole file, not one message's row.
    eventually("it was found locked", || async {
        let report = handle.report();
        report.locked + report.deferred >= 3
    })
    .await;
    let report = handle.report();
    let seconds = start.elapsed().as_secs_f64();
    let tries = f64::from(u32::try_from(report.locked + report.deferred).expect("few"));
    assert!(tries / seconds < 5.0, "{report} in {seconds} s");
    assert_eq!((report.failed, report.dead_lettered), (0, 0), "{report}");
    world.database.unlock(lock).await;

    eventually("everything is done", || world.settled("billing")).await;
    handle.stop();
    handle.join().await.expect("stopped");
    let effects = world.database.number("SELECT count(*) FROM effects").await;
    assert_eq!(effects, i64::try_from(MESSAGES).expect("few"));
    assert_eq!(world.letters("billing").await, []);
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
}

/// The attempt of a redelivery is on record before it is made, and must be refunded.
/// The next outcome. A busy server may take seconds to end the session of the try before, which was dropped in its transaction and
/// has the claim until then.
async fn next_unlocked<B: TestBroker, D: TestDatabase>(world: &World<B, D>, inbox: &mut Inbox) -> Outcome {
    for _ in 0..20 {
        match next(inbox).await {
            Outcome::Locked => world.broker.pass(Duration::from_secs(30)).await,
            outcome => return outcome,
        }
    }
    panic!("nobody lets go of the claim");
}

async fn an_outage_is_no_attempt_of_a_message_that_has_failed_before<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut faults = Vec::new();
    for _ in 0..4 {
        faults.push(Step::raise(world.database.fault().await));
    }
    world.probe.script(move |call| match call.run {
        1 => Step::Fail("once"),
        run @ 2..=5 => faults[run as usize - 2].clone(),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(world.attempts("billing").await, 1);
    for _ in 0..4 {
        assert_eq!(next_unlocked(&world, &mut inbox).await, Outcome::Deferred);
        assert_eq!(world.attempts("billing").await, 1);
        world.broker.pass(Duration::from_secs(30)).await;
    }
    let lock = world.database.lock_claim("billing", "m1").await;
    let outcome = next(&mut inbox).await;
    assert!(matches!(outcome, Outcome::Locked | Outcome::Deferred), "{outcome}");
    world.database.unlock(lock).await;
    world.broker.pass(Duration::from_secs(30)).await;
    assert_eq!(next_unlocked(&world, &mut inbox).await, Outcome::Processed);
    assert_eq!(world.probe.runs("billing", "m1"), 6);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.attempts("billing").await, 0);
    assert_eq!(world.letters("billing").await, []);
}

async fn a_handler_that_is_stopped_with_the_program_has_made_no_attempt<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("once"),
        2..=5 => Step::Hang,
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    drop(inbox);
    for run in 2..=5 {
        let builder = world.builder(&["billing"]).shutdown_timeout(Duration::from_millis(10));
        let handle = builder.spawn().await.expect("an inbox");
        eventually("the handler runs", || async { world.probe.total() == run }).await;
        handle.stop();
        handle.join().await.expect("stopped");
        assert_eq!(world.attempts("billing").await, 1);
        world.assert_untouched("billing", "m1").await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.attempts("billing").await, 0);
    assert!(world.settled("billing").await);
}

/// What fails in the midst of a delivery can be shown with a trigger on SQLite.
mod sqlite {
    use inbox_tests::{EmbeddedFile, SqliteFile};

    use super::*;

    /// If the attempt can't be refunded because the database is still down, the next delivery doesn't count it again.
    #[tokio::test]
    async fn an_attempt_that_can_not_be_refunded_is_counted_once() {
        let world = World::<EmbeddedFile, SqliteFile>::new().await;
        world.publish("m1").await;
        let mut faults = Vec::new();
        for _ in 0..6 {
            faults.push(Step::raise(world.database.fault().await));
        }
        world.probe.script(move |call| match call.run {
            1 => Step::Fail("once"),
            run @ 2..=7 => faults[run as usize - 2].clone(),
            _ => Step::Ok,
        });
        let mut inbox = world.inbox(&["billing"]).await;
        world
            .database
            .exec(
                "CREATE TRIGGER down BEFORE UPDATE ON inbox_attempts WHEN new.attempts < old.attempts \
                 BEGIN SELECT raise(ABORT, 'down'); END",
            )
            .await;
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
        for _ in 0..6 {
            assert_eq!(next(&mut inbox).await, Outcome::Deferred);
            assert!(world.attempts("billing").await <= 2);
            world.broker.pass(Duration::from_secs(30)).await;
        }
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        world.assert_done("billing", "m1").await;
        assert_eq!(world.attempts("billing").await, 0);
        assert_eq!(world.letters("billing").await, []);
    }
}
