//! Replays of dead letters: when they run, their attempts, and what becomes of the letter.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_runtime::{DeadLetterReason, DeadLetterStatus, Outcome};
use inbox_tests::{Step, TestBroker, TestDatabase, eventually, in_time, lean_suite, next};
use tokio::sync::Semaphore;

use super::letters::dead;

lean_suite!(
    f37_a_replay_runs_the_handler,
    f37_a_message_that_is_sent_again_runs_the_handler,
    a_running_inbox_makes_a_replay,
    a_replay_starts_at_once_in_an_idle_inbox,
    a_long_replay_keeps_no_lease_from_being_renewed,
    a_replay_has_all_its_attempts_and_leaves_one_letter,
    a_replay_of_a_handled_message_is_a_duplicate,
    a_replay_that_is_requested_twice_runs_once,
    a_replay_of_a_dead_letter_that_is_not_there,
);

async fn f37_a_replay_runs_the_handler<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    assert!(world.dead_letters().replay(id).await.expect("marked"));
    assert_eq!(world.letter("billing").await.status, DeadLetterStatus::Replaying);
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.probe.runs("billing", "m1"), 2);
    assert_eq!(world.letters("billing").await, []);
    assert_eq!(world.attempts("billing").await, 0);
}

async fn f37_a_message_that_is_sent_again_runs_the_handler<B: TestBroker, D: TestDatabase>() {
    let (world, _) = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}

async fn a_running_inbox_makes_a_replay<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    let handle = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.publish("m2").await;
    eventually("it runs", || async { world.database.inbox("billing", "m2").await == 1 }).await;
    world.dead_letters().replay(id).await.expect("marked");
    eventually("the letter is gone", || async {
        world.letters("billing").await.is_empty()
    })
    .await;
    world.assert_done("billing", "m1").await;
    handle.stop();
    let report = handle.join().await.expect("stopped");
    assert_eq!(report.processed, 2, "{report}");
}

/// And not only after the five seconds for which the pending pull waits.
async fn a_replay_starts_at_once_in_an_idle_inbox<B: TestBroker, D: TestDatabase>() {
    in_time(Duration::from_secs(3), async || {
        let (world, id) = dead::<B, D>().await;
        world.probe.script(|_| Step::Ok);
        let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let asked = Instant::now();
        assert!(world.dead_letters().replay(id).await.expect("written"));
        eventually("the letter is gone", async || world.letters("billing").await.is_empty()).await;
        let taken = asked.elapsed();
        world.assert_done("billing", "m1").await;
        inbox.stop();
        inbox.join().await.expect("stopped");
        taken
    })
    .await;
}

/// The lease of a dead letter is in the database, whose write lock its handler may hold.
async fn a_long_replay_keeps_no_lease_from_being_renewed<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = gate.clone();
    world.probe.script(move |call| match call.id.as_str() {
        "m1" => Step::Gate(wait.clone()),
        _ => Step::Ok,
    });
    let start = async || {
        let builder = world.builder(&["billing"]).ack_wait(Duration::from_secs(1));
        builder.spawn().await.expect("an inbox")
    };
    let inbox = start().await;
    assert!(world.dead_letters().replay(id).await.expect("written"));
    eventually("m1 is being handled", async || world.probe.runs("billing", "m1") == 2).await;
    world.publish("m2").await;
    eventually("m2 waits for its turn", async || {
        let settled = world.broker.settled("billing", "order.created").await;
        settled.is_some_and(|settled| settled.unacked == 1)
    })
    .await;
    // This one would be given m2 if its lease ran out.
    let other = start().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    gate.add_permits(1);
    eventually("everything is settled", async || {
        world.settled("billing").await && world.letters("billing").await.is_empty()
    })
    .await;
    let mut processed = Vec::new();
    for inbox in [inbox, other] {
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert!(report.duplicate == 0 || !B::LEASES, "{report}");
        processed.push(report.processed);
    }
    world.assert_done("billing", "m2").await;
    if !B::LEASES {
        // The other one was given the partition.
        assert_eq!(processed.iter().sum::<u64>(), 2, "{processed:?}");
        return;
    }
    assert_eq!(processed, [2, 0]);
    let calls = world.probe.calls();
    let last = calls.last().expect("a call");
    assert_eq!(
        (last.id.as_str(), last.delivery_count),
        ("m2", Some(1)),
        "it was delivered once"
    );
}

async fn a_replay_has_all_its_attempts_and_leaves_one_letter<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    world.probe.script(|_| Step::Fail("still broken"));
    world.dead_letters().replay(id).await.expect("marked");
    let mut inbox = world.inbox(&["billing"]).await;
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::DeadLettered] {
        assert_eq!(next(&mut inbox).await, outcome);
    }
    let letter = world.letter("billing").await;
    assert_eq!((letter.reason, letter.attempts), (DeadLetterReason::Exhausted, 3));
    assert_eq!(
        (&*letter.error, letter.status),
        ("still broken", DeadLetterStatus::Dead)
    );
    assert_eq!(letter.id, id);
    assert_eq!(world.probe.runs("billing", "m1"), 4);
    world.assert_untouched("billing", "m1").await;
    let none = inbox.process_one(Duration::from_millis(700)).await.expect("the broker");
    assert_eq!(none, None, "it is not replayed by itself");

    world.probe.script(|_| Step::Ok);
    world.dead_letters().replay(id).await.expect("marked");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.letters("billing").await, []);
}

async fn a_replay_of_a_handled_message_is_a_duplicate<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    // Its producer has published it again meanwhile.
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.dead_letters().replay(id).await.expect("marked");
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(world.probe.runs("billing", "m1"), 2);
    world.assert_done("billing", "m1").await;
    assert_eq!(world.letters("billing").await, []);
    assert_eq!(world.attempts("billing").await, 0);
}

async fn a_replay_that_is_requested_twice_runs_once<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    world.probe.script(|_| Step::Ok);
    assert!(world.dead_letters().replay(id).await.expect("marked"));
    assert!(world.dead_letters().replay(id).await.expect("marked"));
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.duplicate), (1, 0), "{report}");
    world.assert_done("billing", "m1").await;
}

async fn a_replay_of_a_dead_letter_that_is_not_there<B: TestBroker, D: TestDatabase>() {
    let (world, id) = dead::<B, D>().await;
    assert!(!world.dead_letters().replay(id + 1).await.expect("looked for"));
}
