//! Every future of ours, dropped at each of its polls: no connection of the pool stays in a transaction, so that what the
//! application writes through the pool afterwards is really there.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use inbox_runtime::{DeadLetterQuery, Message, Outcome, claim, migrate};
use inbox_tests::{EmbeddedFile, Step, TestBroker, TestDatabase, World, database_suite, eventually, next};

database_suite!(
    g03_process_one_dropped_at_each_poll,
    g03_run_until_idle_dropped_at_each_poll,
    g03_a_run_that_is_dropped,
    g03_a_stop_while_messages_are_dead_lettered,
    g03_dead_letters_dropped_at_each_poll,
    g03_a_claim_dropped_at_each_poll,
    g04_migrate_dropped_at_each_poll,
    g04_a_start_dropped_at_each_poll,
);

type On<D> = World<EmbeddedFile, D>;

/// How often a future is polled at most before it is dropped. Between two polls it has some time, so that most of them
/// find that what it waited for has come.
const MOST: usize = 400;
const BETWEEN: Duration = Duration::from_millis(2);

/// Polls a future `polls` times and drops it then. Returns what it gave, if it was done by then.
async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        tokio::time::sleep(BETWEEN).await;
    }
    None
}

/// The application writes through every connection of the pool, and sees all of it from another one.
async fn assert_idle<D: TestDatabase>(database: &D, after: &str) {
    // A connection that is being closed may hold SQLite's write lock for another moment.
    eventually("the application can write", async || {
        database.try_exec("DELETE FROM effects WHERE grp = 'own'").await.is_ok()
    })
    .await;
    let wrote = database
        .write_through_pool("INSERT INTO effects (grp, msg_id) VALUES ('own', 'w')")
        .await;
    let there = database
        .seen_by_others("SELECT count(*) FROM effects WHERE grp = 'own'")
        .await;
    assert_eq!(there, wrote, "{after}: what the application wrote is not there");
    eventually("no connection is in a transaction", async || {
        database.in_transaction().await == 0
    })
    .await;
}

/// What becomes of a message.
const KINDS: [&str; 5] = ["ok", "permanent", "undecodable", "broken", "fail"];

async fn publish<D: TestDatabase>(world: &On<D>, kind: &str, id: &str) {
    if kind == "undecodable" {
        let message = Message::new("order.created", "no JSON").id(id.to_owned());
        world.broker.publish(message).await;
    } else {
        world.publish(id).await;
    }
}

fn script<D: TestDatabase>(world: &On<D>) {
    world.probe.script(|call| match call.id.split('-').next() {
        Some("fail") => Step::Fail("once more"),
        Some("permanent") => Step::Permanent("for good"),
        Some("broken") => Step::Swallow("ROLLBACK", Box::new(Step::Ok)),
        _ => Step::Ok,
    });
}

async fn g03_process_one_dropped_at_each_poll<D: TestDatabase>() {
    for group in ["patient", "at-most-once"] {
        let world = On::<D>::new().await;
        script(&world);
        let mut inbox = world.inbox(&[group]).await;
        for kind in KINDS {
            let mut done = None;
            for polls in 1..=MOST {
                // Under at_most_once it may be lost with the delivery that was dropped.
                publish(&world, kind, &format!("{kind}-{polls}")).await;
                done = dropped_after(polls, inbox.process_one(Duration::from_secs(60))).await;
                assert_idle(&world.database, &format!("{group}, {kind}, {polls} polls")).await;
                world.lease_runs_out().await;
                if done.is_some() {
                    break;
                }
            }
            let outcome = done.expect("done in the end").expect("the broker");
            assert!(outcome.is_some(), "{group}, {kind}");
            // What is left of those that were dropped; the last kind fails for ever.
            if kind != "fail" {
                inbox.run_until_idle().await.expect("the broker");
            }
        }
    }
}

async fn g03_run_until_idle_dropped_at_each_poll<D: TestDatabase>() {
    let world = On::<D>::new().await;
    script(&world);
    // Each that is dropped is an attempt, as if the process had died: only this one makes any number of them.
    let mut inbox = world.inbox(&["patient"]).await;
    for kind in KINDS.into_iter().filter(|kind| *kind != "fail") {
        publish(&world, kind, kind).await;
    }
    for polls in (1..=MOST).step_by(3) {
        let done = dropped_after(polls, inbox.run_until_idle()).await;
        assert_idle(&world.database, &format!("{polls} polls")).await;
        world.lease_runs_out().await;
        if done.is_some() {
            break;
        }
    }
    world.assert_done("patient", "ok").await;
}

async fn g03_a_run_that_is_dropped<D: TestDatabase>() {
    for round in 0..12 {
        let world = On::<D>::new().await;
        script(&world);
        for kind in KINDS {
            publish(&world, kind, &format!("{kind}-1")).await;
            publish(&world, kind, &format!("{kind}-2")).await;
        }
        let inbox = world.inbox(&["billing", "audit", "at-most-once"]).await;
        let run = tokio::time::timeout(Duration::from_millis(4 * round), inbox.run()).await;
        assert!(run.is_err(), "it runs until it is dropped");
        assert_idle(&world.database, &format!("{round}")).await;
    }
}

async fn g03_a_stop_while_messages_are_dead_lettered<D: TestDatabase>() {
    for round in 0..12 {
        let world = On::<D>::new().await;
        script(&world);
        for number in 0..20 {
            publish(&world, "undecodable", &format!("u{number}")).await;
        }
        let builder = world
            .builder(&["billing", "audit", "at-most-once"])
            .shutdown_timeout(Duration::from_millis(1));
        let handle = builder.spawn().await.expect("an inbox");
        tokio::time::sleep(Duration::from_millis(4 * round)).await;
        handle.stop();
        handle.join().await.expect("stopped");
        assert_idle(&world.database, &format!("{round}")).await;
    }
}

async fn g03_dead_letters_dropped_at_each_poll<D: TestDatabase>() {
    let world = On::<D>::new().await;
    world.probe.script(|_| Step::Permanent("for good"));
    let mut inbox = world.inbox(&["billing"]).await;
    for id in ["m1", "m2"] {
        world.publish(id).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    }
    let first = world.letters("billing").await[0].id;
    let letters = world.dead_letters();
    for what in ["list", "count", "get", "replay", "discard"] {
        let mut done = false;
        for polls in 1..=MOST {
            let call = async {
                match what {
                    "list" => letters.list(DeadLetterQuery::default()).await.map(drop),
                    "count" => letters.count(None).await.map(drop),
                    "get" => letters.get(first).await.map(drop),
                    "replay" => letters.replay(first).await.map(drop),
                    _ => letters.discard(first).await.map(drop),
                }
            };
            let output = dropped_after(polls, call).await;
            assert_idle(&world.database, &format!("{what}, {polls} polls")).await;
            if let Some(output) = output {
                output.expect(what);
                done = true;
                break;
            }
        }
        assert!(done, "{what}");
    }
    assert_eq!(world.letters("billing").await.len(), 1);
}

async fn g03_a_claim_dropped_at_each_poll<D: TestDatabase>() {
    let world = On::<D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    let mut done = false;
    for polls in 1..=MOST {
        let mut tx = world.database.begin().await;
        done = dropped_after(polls, claim(&mut *tx, "billing", "m1")).await.is_some();
        D::rollback(tx).await;
        assert_idle(&world.database, &format!("{polls} polls")).await;
        assert_eq!(world.database.inbox("billing", "m1").await, 0);
        if done {
            break;
        }
    }
    assert!(done);
}

async fn g04_migrate_dropped_at_each_poll<D: TestDatabase>() {
    let database = D::fresh().await;
    let pool = database.pool();
    let mut done = None;
    for polls in 1..=MOST {
        done = dropped_after(polls, migrate(&pool)).await;
        assert_idle(&database, &format!("{polls} polls")).await;
        if done.is_some() {
            break;
        }
    }
    done.expect("done in the end").expect("migrated");
    assert_eq!(database.number("SELECT count(*) FROM inbox_events").await, 0);
}

async fn g04_a_start_dropped_at_each_poll<D: TestDatabase>() {
    let world = On::<D>::new().await;
    world.publish("m1").await;
    let mut inbox = None;
    for polls in 1..=MOST {
        inbox = dropped_after(polls, world.builder(&["billing"]).build()).await;
        assert_idle(&world.database, &format!("{polls} polls")).await;
        if inbox.is_some() {
            break;
        }
    }
    let mut inbox = inbox.expect("done in the end").expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}
