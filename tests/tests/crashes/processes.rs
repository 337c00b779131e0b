//! Processes that die, start at once or share the work: nothing is lost, and every effect is there once.

use std::time::{Duration, Instant};

use inbox_runtime::{
    Embedded, Message,
    sqlx::{self, SqlitePool},
};
use inbox_tests::{
    Settled, TestBroker, TestDatabase, World, eventually,
    process::{Mode, Signal, Worker, WorkerCommand, long},
    process_suite,
};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

process_suite!(
    a_handler_that_aborts_the_process_ends_in_the_dead_letter,
    g26_a_killer_among_others_at_work_takes_nobody_with_it,
    g26_a_killer_behind_quick_messages_ends_as_soon_as_any,
    g26_a_killer_behind_quick_messages_that_are_not_claimed_ends_as_soon_as_any,
    b18_random_kills_and_failures_leave_every_effect_once,
    f16_a_process_starts_while_a_handler_of_another_has_the_database,
);

/// `max_attempts` is 3. The first attempt is not written before it is made, those of redeliveries are, and where the broker
/// doesn't count deliveries the first one is taken for one.
async fn a_handler_that_aborts_the_process_ends_in_the_dead_letter<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for id in ["m1", "m2", "m3"] {
        world.publish(id).await;
    }
    let (mut deaths, mut runs) = (0, 0);
    loop {
        let mut worker = WorkerCommand::on(WORKER, Mode::Run, &world, "billing")
            .in_place(&world, "the-only-one")
            .ack_wait(Duration::from_millis(500))
            .script("m1=abort")
            .start();
        worker.says("ready").await;
        let turn = async {
            while !worker.is_over() && !world.settled("billing").await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(2), turn)
            .await
            .expect("the process dies or everything is settled");
        worker.signal(Signal::TERM);
        let ended = worker.end().await;
        runs += ended.runs("billing", "m1");
        if ended.status.success() {
            break;
        }
        assert!(ended.killed_by(Signal::ABORT), "{ended:#?}");
        deaths += 1;
        assert!(deaths < 10, "the message kills one process after the other: {ended:#?}");
    }
    let expected = if B::COUNTS { 4 } else { 3 };
    assert_eq!((deaths, runs), (expected, expected));
    world.assert_untouched("billing", "m1").await;
    world.assert_done("billing", "m2").await;
    world.assert_done("billing", "m3").await;
    assert!(world.settled("billing").await);
    let letter = "SELECT count(*) FROM inbox_dead_letters WHERE message_id = 'm1' AND consumer_group = 'billing' \
                  AND reason = 'exhausted' AND attempts = 3 AND error LIKE '%the process died%'";
    assert_eq!(world.database.number(letter).await, 1);
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_dead_letters").await,
        1
    );
}

/// Starts workers one after the other, as an orchestrator does, until everything is settled. Returns how many died.
async fn deaths<B: TestBroker, D: TestDatabase>(world: &World<B, D>, group: &str, subject: &str, script: &str) -> u32 {
    let mut deaths = 0;
    loop {
        let mut worker = WorkerCommand::on(WORKER, Mode::Run, world, group)
            .in_place(world, "the-only-one")
            .ack_wait(Duration::from_millis(500))
            .script(script)
            .start();
        worker.says("ready").await;
        let turn = async {
            while !worker.is_over() && world.broker.settled(group, subject).await != Some(Settled::ALL) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(2), turn)
            .await
            .expect("the process dies or everything is settled");
        worker.signal(Signal::TERM);
        let ended = worker.end().await;
        if ended.status.success() {
            return deaths;
        }
        assert!(ended.killed_by(Signal::ABORT), "{ended:#?}");
        deaths += 1;
        assert!(deaths < 30, "the message kills one process after the other: {ended:#?}");
    }
}

/// The only dead letter is that of the killer, whose attempts are `max`; everything else is done once.
async fn assert_only_the_killer_is_dead<B: TestBroker, D: TestDatabase>(world: &World<B, D>, max: u32, others: i64) {
    let number = async |sql: &str| world.database.number(sql).await;
    assert_eq!(number("SELECT count(*) FROM inbox_dead_letters").await, 1);
    let letter = format!(
        "SELECT count(*) FROM inbox_dead_letters WHERE message_id = 'killer' AND reason = 'exhausted' AND attempts = {max} \
         AND error LIKE '%the process died%'"
    );
    assert_eq!(number(&letter).await, 1);
    assert_eq!(number("SELECT count(*) FROM effects").await, others);
    assert_eq!(number("SELECT count(DISTINCT msg_id) FROM effects").await, others);
}

/// `crowd` has eight at work, and its `max_attempts` is 3: the others take their time, so that they are at work when the process
/// dies.
async fn g26_a_killer_among_others_at_work_takes_nobody_with_it<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("order.created").await;
    for id in ["m1", "m2", "m3", "killer", "m4", "m5", "m6", "m7"] {
        world.publish(id).await;
    }
    let died = deaths(&world, "crowd", "order.created", "killer=abort,sleep:100ms").await;
    assert!((3..=4).contains(&died), "{died} deaths");
    assert_only_the_killer_is_dead(&world, 3, 7).await;
}

/// With Kafka those before it are handled, and not all of them are committed, when the process dies.
async fn g26_a_killer_behind_quick_messages_ends_as_soon_as_any<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for number in 0..40 {
        world.publish(&format!("m{number}")).await;
    }
    world.publish("killer").await;
    world.publish("behind").await;
    let died = deaths(&world, "billing", "order.created", "killer=abort").await;
    assert!((3..=4).contains(&died), "{died} deaths");
    assert_only_the_killer_is_dead(&world, 3, 41).await;
}

/// Without claims, nothing shows that those before it were handled already.
async fn g26_a_killer_behind_quick_messages_that_are_not_claimed_ends_as_soon_as_any<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for number in 0..40 {
        world.publish(&format!("m{number}")).await;
    }
    world.publish("killer").await;
    world.publish("behind").await;
    let died = deaths(&world, "at-least-once", "order.created", "killer=abort").await;
    assert!((3..=4).contains(&died), "{died} deaths");
    let number = async |sql: &str| world.database.number(sql).await;
    let letters =
        "SELECT count(*) FROM inbox_dead_letters WHERE message_id = 'killer' AND reason = 'exhausted' AND attempts = 3";
    assert_eq!(number(letters).await, 1);
    assert_eq!(number("SELECT count(*) FROM inbox_dead_letters").await, 1);
    assert_eq!(number("SELECT count(DISTINCT msg_id) FROM effects").await, 41);
}

/// Three processes share the work, one of which is killed at short intervals until all is done; handlers fail one time in five.
async fn b18_random_kills_and_failures_leave_every_effect_once<B: TestBroker, D: TestDatabase>() {
    let count: u32 = if long() { 2_000 } else { 300 };
    let world = World::<B, D>::new().await;
    world.broker.spread("order.created").await;
    for number in 0..count {
        world.publish(&format!("m{number}")).await;
    }
    let start = |slot: usize| {
        WorkerCommand::on(WORKER, Mode::Run, &world, "audit")
            .in_place(&world, &format!("worker-{slot}"))
            .ack_wait(Duration::from_secs(1))
            .script("fail:0.2")
            .start()
    };
    let mut workers: Vec<_> = (0..3).map(start).collect();
    let deadline = Instant::now() + Duration::from_secs(if long() { 900 } else { 300 });
    // `seen`: the runs at the last kill.
    let (mut kills, mut runs, mut seen) = (0, 0, 0);
    while world.broker.settled("audit", ">").await != Some(Settled::ALL) {
        assert!(
            Instant::now() < deadline,
            "not done after {kills} kills and {runs} runs"
        );
        tokio::time::sleep(B::KILLS).await;
        // However slow the machine is, handlers make progress between two kills.
        let so_far = runs + workers.iter().map(Worker::runs_so_far).sum::<usize>();
        if so_far == seen {
            continue;
        }
        seen = so_far;
        let victim = fastrand::usize(..workers.len());
        let ended = std::mem::replace(&mut workers[victim], start(victim)).kill().await;
        assert!(ended.killed_by(Signal::KILL), "{ended:#?}");
        kills += 1;
        runs += ended.all_runs();
    }
    for mut worker in workers {
        worker.says("ready").await;
        runs += worker.stop().await.all_runs();
    }
    let count = i64::from(count);
    world.assert_each_done_once(count).await;
    assert_eq!(world.broker.settled("audit", ">").await, Some(Settled::ALL));
    assert!(kills > 0 && runs as i64 > count, "{kills} kills, {runs} runs");
}

/// Once the tables are there, a start needs no lock that a handler can have for minutes.
async fn f16_a_process_starts_while_a_handler_of_another_has_the_database<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut busy = WorkerCommand::on(WORKER, Mode::Run, &world, "billing")
        .script("sleep:60s")
        .start();
    busy.says("run").await;
    let mut other = WorkerCommand::on(WORKER, Mode::Run, &world, "shipping").start();
    other.says("ready").await;
    assert!(!busy.is_over());
    busy.kill().await;
    eventually("the other handles its message", || world.settled("shipping")).await;
    other.stop().await;
    world.assert_done("shipping", "m1").await;
    world.assert_untouched("billing", "m1").await;
}

/// About the two files, which don't exist before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_eight_processes_start_at_once_on_new_files() {
    for round in 0..if long() { 50 } else { 5 } {
        let folder = tempfile::tempdir().expect("a folder");
        let (broker, database) = (folder.path().join("broker.db"), folder.path().join("app.db"));
        let (broker_url, database_url) = (
            format!("embedded:{}", broker.display()),
            format!("sqlite://{}?mode=rwc", database.display()),
        );
        let command = || {
            WorkerCommand::new(WORKER, Mode::Idle, &broker_url, &database_url, "billing")
                .env("INBOX_TEST_HANDLERS", "sqlite")
        };
        let mut workers: Vec<_> = (0..8)
            .map(|_| command().env("INBOX_TEST_BARRIER", "1").start())
            .collect();
        for worker in &mut workers {
            worker.says("waiting").await;
        }
        for worker in &mut workers {
            worker.go();
        }
        for worker in workers {
            let ended = worker.end().await;
            assert!(ended.status.success(), "round {round}: {ended:#?}");
        }
        // The tables are complete: one more process handles a message with them.
        let pool = SqlitePool::connect(&database_url).await.expect("the database");
        let made: i64 = sqlx::query_scalar("SELECT count(*) FROM _inbox_migrations WHERE success")
            .fetch_one(&pool)
            .await
            .expect("the bookkeeping");
        assert_eq!(made, 4, "round {round}");
        sqlx::raw_sql("CREATE TABLE effects (grp TEXT NOT NULL, msg_id TEXT NOT NULL)")
            .execute(&pool)
            .await
            .expect("the table of effects");
        let message = Message::new("order.created", r#"{"order_id": "o1"}"#).id("m1");
        Embedded::file(&broker).publish(message).await.expect("published");
        let ended = command().start().end().await;
        assert_eq!(ended.runs("billing", "m1"), 1, "round {round}: {ended:#?}");
        let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM effects JOIN inbox_events ON message_id = msg_id")
            .fetch_one(&pool)
            .await
            .expect("the effects");
        assert_eq!(effects, 1, "round {round}");
    }
}
