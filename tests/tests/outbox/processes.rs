//! Processes that die while they write, relay and handle: every order has each of its invoices once.

use std::time::{Duration, Instant};

use inbox_tests::{
    Settled, TestBroker, TestDatabase, World, eventually,
    process::{Mode, Signal, Worker, WorkerCommand, long},
    process_suite,
};

use super::handlers::{order, waiting};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

process_suite!(
    b25_a_process_that_dies_at_any_point_of_the_outbox_leaves_one_invoice,
    b25_random_kills_leave_every_invoice_once,
);

async fn world<B: TestBroker, D: TestDatabase>() -> World<B, D> {
    let world = World::<B, D>::new().await;
    world.broker.spread("order.created").await;
    world.broker.spread("invoice.created").await;
    inbox_runtime::migrate(&world.database.pool())
        .await
        .expect("the tables");
    world
}

/// A process with the handlers of orders and of invoices, which relays.
fn command<B: TestBroker, D: TestDatabase>(world: &World<B, D>, name: &str) -> WorkerCommand {
    WorkerCommand::on(WORKER, Mode::Run, world, "orders,invoices")
        .in_place(world, name)
        .env("INBOX_TEST_MODULE", "inbox_tests::outbox_handlers")
        .ack_wait(Duration::from_secs(1))
}

/// Whether everything is handled, published, and handled again.
async fn is_done<B: TestBroker, D: TestDatabase>(world: &World<B, D>, invoices: i64) -> bool {
    world.settled("orders").await
        && waiting(&world.database).await == 0
        && world.database.number(INVOICES).await >= invoices
        && world.broker.settled("invoices", "invoice.created").await == Some(Settled::ALL)
}

const INVOICES: &str = "SELECT count(*) FROM effects WHERE grp = 'invoices'";

/// Each order has one effect, and each of its invoices one.
async fn assert_each_once<B: TestBroker, D: TestDatabase>(world: &World<B, D>, orders: i64, invoices: i64) {
    let number = async |sql: &str| world.database.number(sql).await;
    assert_eq!(
        number("SELECT count(*) FROM effects WHERE grp = 'orders'").await,
        orders
    );
    assert_eq!(
        number("SELECT count(DISTINCT msg_id) FROM effects WHERE grp = 'orders'").await,
        orders
    );
    assert_eq!(number(INVOICES).await, invoices);
    assert_eq!(
        number("SELECT count(DISTINCT msg_id) FROM effects WHERE grp = 'invoices'").await,
        invoices
    );
    assert_eq!(number("SELECT count(*) FROM inbox_dead_letters").await, 0);
    assert_eq!(number("SELECT count(*) FROM inbox_outbox_parked").await, 0);
}

#[cfg(feature = "failpoints")]
async fn b25_a_process_that_dies_at_any_point_of_the_outbox_leaves_one_invoice<B: TestBroker, D: TestDatabase>() {
    let world = world::<B, D>().await;
    let points = [
        "before_commit",
        "after_commit",
        "outbox_after_send",
        "outbox_after_delete",
    ];
    for (done, point) in (1..).zip(points) {
        let mut dying = command(&world, "the-only-one").kill_at(point).start();
        order(&world, point, 1).await;
        tokio::time::timeout(Duration::from_mins(2), async {
            while !dying.is_over() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("it dies");
        let ended = dying.end().await;
        assert!(
            ended.killed_by(Signal::ABORT) || ended.killed_by(Signal::KILL),
            "{point}: {ended:#?}"
        );
        let mut next = command(&world, "the-only-one").start();
        next.says("ready").await;
        eventually(point, async || is_done(&world, done).await).await;
        next.stop().await;
        assert_each_once(&world, done, done).await;
    }
}

#[cfg(not(feature = "failpoints"))]
async fn b25_a_process_that_dies_at_any_point_of_the_outbox_leaves_one_invoice<B: TestBroker, D: TestDatabase>() {}

/// Three processes, one of which is killed at short intervals until all is done.
async fn b25_random_kills_leave_every_invoice_once<B: TestBroker, D: TestDatabase>() {
    let orders: i64 = if long() { 10_000 } else { 200 };
    let world = world::<B, D>().await;
    for number in 0..orders {
        order(&world, &format!("o{number}"), 1).await;
    }
    let start = |slot: usize| command(&world, &format!("worker-{slot}")).start();
    let mut workers: Vec<_> = (0..3).map(start).collect();
    let deadline = Instant::now() + Duration::from_secs(if long() { 1800 } else { 300 });
    let (mut kills, mut runs, mut seen) = (0, 0, 0);
    while !is_done(&world, orders).await {
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
    for worker in workers {
        runs += worker.kill().await.all_runs();
    }
    println!("{orders} orders, {runs} runs, {kills} processes killed");
    assert_each_once(&world, orders, orders).await;
    assert!(kills > 0, "nobody was killed");
}
