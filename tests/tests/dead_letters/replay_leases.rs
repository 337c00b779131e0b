//! Replays: their leases, handlers that no program has any more, and rows that were deleted by hand.

use std::time::Duration;

use inbox_runtime::{DeadLetterStatus, Message, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, World, embedded_suite, eventually, next, nothing_more};
use tokio::sync::Semaphore;

embedded_suite!(
    g08_a_replay_that_is_requested_while_it_runs_runs_once,
    g17_a_replay_is_a_duplicate_as_long_as_the_row_is_there,
    g08_a_replay_whose_lease_was_lost_acknowledges_nothing,
    g08_a_replay_whose_lease_was_lost_leaves_the_letter_as_it_is,
    g08_a_replay_in_back_off_is_made_at_once_when_it_is_requested,
    g33_a_replay_by_a_handler_that_nobody_has_is_named,
);

/// A world with one dead letter of that group, and the letter's number.
async fn dead<B: TestBroker, D: TestDatabase>(group: &str) -> (World<B, D>, i64) {
    let world = World::<B, D>::new().await;
    world
        .broker
        .publish(Message::new("order.created", "{ not JSON").id("m1"))
        .await;
    let mut inbox = world.inbox(&[group]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let id = world.letter(group).await.id;
    let readable = match D::HANDLERS {
        "postgres" => r#"'{"order_id":"o1"}'::bytea"#,
        _ => r#"CAST('{"order_id":"o1"}' AS BLOB)"#,
    };
    world
        .database
        .exec(&format!("UPDATE inbox_dead_letters SET payload = {readable}"))
        .await;
    (world, id)
}

async fn g08_a_replay_that_is_requested_while_it_runs_runs_once<B: TestBroker, D: TestDatabase>() {
    for group in ["at-most-once", "at-least-once", "billing"] {
        let (world, id) = dead::<B, D>(group).await;
        let gate = std::sync::Arc::new(Semaphore::new(0));
        let wait = gate.clone();
        world.probe.script(move |_| Step::Gate(wait.clone()));
        let one = world.builder(&[group]).spawn().await.expect("an inbox");
        world.dead_letters().replay(id).await.expect("marked");
        eventually("it runs", async || world.probe.total() == 1).await;
        // On SQLite it waits for the handler, which holds the write lock.
        let letters = world.dead_letters();
        let again = tokio::spawn(async move { letters.replay(id).await });
        let mut other = world.inbox(&[group]).await;
        let nothing = other.process_one(Duration::from_millis(700)).await.expect("the broker");
        assert_eq!((nothing, world.probe.total()), (None, 1), "{group}");
        gate.add_permits(10);
        // Under at_most_once the letter is deleted before its handler runs.
        let there = again.await.expect("no panic").expect("marked");
        assert!(!there || group != "at-most-once", "{group}");
        eventually("the letter is gone", async || world.letters(group).await.is_empty()).await;
        one.stop();
        one.join().await.expect("stopped");
        let nothing = other.process_one(Duration::from_millis(100)).await.expect("the broker");
        assert_eq!((nothing, world.probe.total()), (None, 1), "{group}");
    }
}

/// From now on each letter is leased by another process right after it was leased, as if the lease had expired at once.
async fn pass_on<B: TestBroker, D: TestDatabase>(world: &World<B, D>) {
    let sql = match D::HANDLERS {
        "postgres" => {
            "CREATE FUNCTION pass_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             UPDATE inbox_dead_letters SET replay_lease = replay_lease + 1 WHERE id = new.id; RETURN NULL; END $$; \
             CREATE TRIGGER pass_on AFTER UPDATE OF replay_taken ON inbox_dead_letters FOR EACH ROW \
             WHEN (new.replay_taken) EXECUTE FUNCTION pass_on()"
        }
        _ => {
            "CREATE TRIGGER pass_on AFTER UPDATE OF replay_taken ON inbox_dead_letters WHEN new.replay_taken BEGIN \
             UPDATE inbox_dead_letters SET replay_lease = replay_lease + 1 WHERE id = new.id; END"
        }
    };
    world.database.exec(sql).await;
}

async fn g08_a_replay_whose_lease_was_lost_acknowledges_nothing<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>("at-most-once").await;
    pass_on(&world).await;
    world.dead_letters().replay(id).await.expect("marked");
    let mut inbox = world.inbox(&["at-most-once"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Locked);
    assert_eq!(world.probe.total(), 0, "it is somebody else's");
    assert_eq!(world.letter("at-most-once").await.status, DeadLetterStatus::Replaying);
}

async fn g08_a_replay_whose_lease_was_lost_leaves_the_letter_as_it_is<B: TestBroker, D: TestDatabase>() {
    for (step, outcome) in [
        (Step::Permanent("too late"), Outcome::Locked),
        (Step::Fail("too late"), Outcome::Failed),
        (Step::Ok, Outcome::Processed),
    ] {
        let (world, id) = dead::<B, D>("at-least-once").await;
        pass_on(&world).await;
        world.dead_letters().replay(id).await.expect("marked");
        let before = world.letter("at-least-once").await;
        world.probe.script(move |_| step.clone());
        let mut inbox = world.inbox(&["at-least-once"]).await;
        assert_eq!(next(&mut inbox).await, outcome);
        assert_eq!(world.letter("at-least-once").await, before);
        let taken = "SELECT count(*) FROM inbox_dead_letters WHERE replay_taken AND replay_lease = 2";
        assert_eq!(world.database.number(taken).await, 1, "{outcome}");
    }
}

async fn g08_a_replay_in_back_off_is_made_at_once_when_it_is_requested<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>("billing").await;
    world.probe.script(|call| match call.run {
        1 => Step::RetryAfter(Duration::from_secs(3600)),
        _ => Step::Ok,
    });
    world.dead_letters().replay(id).await.expect("marked");
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    let letter = world.letter("billing").await;
    assert!(
        letter.replay_requested_at.is_some_and(|at| at >= letter.dead_at),
        "{letter:?}"
    );
    nothing_more(&mut inbox).await;
    assert!(world.dead_letters().replay(id).await.expect("marked"));
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.letters("billing").await, []);
    assert_eq!(world.attempts("billing").await, 0);
}

async fn g33_a_replay_by_a_handler_that_nobody_has_is_named<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>("billing").await;
    let handle = world.builder(&["shipping"]).spawn().await.expect("an inbox");
    world
        .database
        .exec("UPDATE inbox_dead_letters SET handler = 'shop::billing_as_it_was_called'")
        .await;
    assert!(world.dead_letters().replay(id).await.expect("marked"));
    let letter = world.letter("billing").await;
    assert_eq!(letter.status, DeadLetterStatus::Replaying);
    assert!(letter.replay_requested_at.is_some());
    assert_eq!(handle.health().warnings, [""; 0], "somebody may take it yet");
    let minute_ago = match D::HANDLERS {
        "postgres" => "clock_timestamp() - interval '1 minute'",
        _ => "CAST(unixepoch('subsec') * 1000 AS INTEGER) - 60000",
    };
    world
        .database
        .exec(&format!("UPDATE inbox_dead_letters SET replay_at = {minute_ago}"))
        .await;
    eventually("health names it", async || {
        let warnings = handle.health().warnings;
        warnings.len() == 1
            && [
                "`billing`",
                "`shop::billing_as_it_was_called`",
                "no running program",
                "discard",
            ]
            .iter()
            .all(|part| warnings[0].contains(part))
    })
    .await;
    assert!(handle.health().ready, "no message waits for it: {:?}", handle.health());
    assert!(world.dead_letters().discard(id).await.expect("deleted"));
    eventually("it is over", async || handle.health().warnings.is_empty()).await;
    handle.stop();
    handle.join().await.expect("stopped");
}

/// What the documentation of `replay` says about rows that are deleted by hand.
async fn g17_a_replay_is_a_duplicate_as_long_as_the_row_is_there<B: TestBroker, D: TestDatabase>() {
    for (row_is_there, outcome, effects) in [(true, Outcome::Duplicate, 1), (false, Outcome::Processed, 2)] {
        let (world, id) = dead::<B, D>("billing").await;
        world.publish("m1").await;
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        if !row_is_there {
            world.database.exec("DELETE FROM inbox_events").await;
        }
        world.dead_letters().replay(id).await.expect("marked");
        assert_eq!(next(&mut inbox).await, outcome);
        assert_eq!(world.database.effects("billing", "m1").await, effects);
        assert_eq!(world.letters("billing").await, []);
    }
}
