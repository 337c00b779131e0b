//! The connections that workers hold: none while idle, none that is broken, none that is left in a transaction.

use std::{task::Poll, time::Duration};

use inbox_runtime::{Outcome, sqlx::postgres::PgPoolOptions};
use inbox_tests::{Settled, Step, TestBroker, TestDatabase, eventually, next, pool, process::long};

use crate::{World, assert_all_done, handlers, publish, sessions, settle, world_with};

/// The future of a delivery is dropped after each of its first polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f02_a_delivery_that_is_dropped_leaves_no_open_transaction() {
    let world = world_with(|database| {
        PgPoolOptions::new()
            .max_connections(2)
            .test_before_acquire(false)
            .connect_lazy_with(database.options())
    })
    .await;
    let mut inbox = world.inbox(&["billing"]).await;
    world.publish("first").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    let mut count = 1;
    for steps in 1..=if long() { 60 } else { 25 } {
        world.publish(&format!("m{steps}")).await;
        count += 1;
        {
            let mut delivery = Box::pin(inbox.process_one(Duration::from_secs(5)));
            for _ in 0..steps {
                let done =
                    std::future::poll_fn(|context| Poll::Ready(delivery.as_mut().poll(context).is_ready())).await;
                if done {
                    break;
                }
                // Long enough for an answer of the server's to be there at the next step.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        eventually("no transaction is left open", || async {
            sessions(&world, "idle in transaction%").await == 0
        })
        .await;
    }
    for _ in 0..3 {
        world.broker.pass(Duration::from_secs(31)).await;
        inbox.run_until_idle().await.expect("the broker");
    }
    assert!(world.settled("billing").await);
    assert_all_done(&world, "billing", count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_a_session_that_the_server_ends_is_replaced() {
    let world = World::new().await;
    let name = world.database.name().to_owned();
    let set = format!("ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '300ms'");
    world.database.exec(&set).await;
    world.probe.script(|call| match call.run {
        1 => Step::Sleep(Duration::from_secs(1)),
        _ => Step::Ok,
    });
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    // It is the message's own: the server lives.
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert!(!world.settled("billing").await);
    world.assert_untouched("billing", "m1").await;
    world
        .database
        .exec(&format!(
            "ALTER DATABASE {name} RESET idle_in_transaction_session_timeout"
        ))
        .await;
    assert_eq!(settle(&mut inbox).await, Outcome::Processed);
    assert_all_done(&world, "billing", 1).await;
}

/// An administrator ends the session in the middle of the handler; the worker goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_a_session_that_is_terminated_is_replaced() {
    let world = World::new().await;
    publish(&world, 10).await;
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("m2" | "m6", 1) => Step::Exec("SELECT pg_terminate_backend(pg_backend_pid())"),
        ("m8", 1) => Step::Swallow("SELECT pg_terminate_backend(pg_backend_pid())", Box::new(Step::Ok)),
        _ => Step::Ok,
    });
    let inbox = world.inbox(&["billing"]).await.spawn();
    eventually("all is settled", || world.settled("billing")).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.failed, report.dead_lettered),
        (10, 0, 0),
        "{report}"
    );
    assert!(report.deferred >= 3, "{report}");
    assert_all_done(&world, "billing", 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_an_idle_inbox_holds_no_transaction_and_no_connection() {
    let world = World::new().await;
    let inbox = world.inbox(&["audit"]).await.spawn();
    for round in 1..=3 {
        for number in 0..20 {
            world.publish(&format!("r{round}-{number}")).await;
        }
        eventually("all is settled", || async {
            world.broker.settled("audit", ">").await == Some(Settled::ALL)
        })
        .await;
        let pool = world.database.pool();
        eventually("every connection is back in the pool", || async {
            pool.num_idle() == pool.size() as usize
        })
        .await;
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL \
                    AND pid <> pg_backend_pid()";
        assert_eq!(world.database.number(open).await, 0);
    }
    inbox.stop();
    inbox.join().await.expect("stopped");
    assert_all_done(&world, "audit", 60).await;
}

/// The handler's time runs out while its statement runs on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_statement_in_flight_when_the_time_runs_out() {
    let count = if long() { 50 } else { 4 };
    let world = world_with(|database| pool(database.options(), 2)).await;
    world.probe.script(|call| match call.run {
        1 => Step::Exec("LOCK TABLE effects IN SHARE MODE; SELECT pg_sleep(300)"),
        _ => Step::Ok,
    });
    let mut inbox = world.inbox(&["hasty"]).await;
    for number in 1..=count {
        world.publish(&format!("m{number}")).await;
        // The one before it may be redelivered in between.
        while world.probe.runs("hasty", &format!("m{number}")) == 0 {
            let outcome = next(&mut inbox).await;
            assert!(matches!(outcome, Outcome::Failed | Outcome::Processed), "{outcome}");
        }
        let locks = "SELECT count(*) FROM pg_locks WHERE relation = 'effects'::regclass AND pid <> pg_backend_pid()";
        // The server is told to cancel it, which takes a moment; by itself it takes five minutes.
        eventually("no lock and no statement is left", async || {
            world.database.number(locks).await + sessions(&world, "active").await == 0
        })
        .await;
    }
    for number in 1..=20 {
        world.publish(&format!("n{number}")).await;
    }
    world.probe.script(|_| Step::Ok);
    while !world.settled("hasty").await {
        let outcome = next(&mut inbox).await;
        assert!(matches!(outcome, Outcome::Processed | Outcome::Deferred), "{outcome}");
    }
    assert_all_done(&world, "hasty", count + 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_handlers_that_borrow_from_the_same_pool_get_through() {
    let world = world_with(|database| {
        PgPoolOptions::new()
            .max_connections(5)
            .acquire_timeout(Duration::from_secs(2))
            .connect_lazy_with(database.options())
    })
    .await;
    publish(&world, 40).await;
    let inbox = handlers::builder(&world, "borrower").spawn().await.expect("an inbox");
    eventually("all is settled", || world.settled("borrower")).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.failed, report.dead_lettered),
        (40, 0, 0),
        "{report}"
    );
    assert_all_done(&world, "borrower", 40).await;
}

/// All connections are taken by somebody else for longer than the pool waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_an_exhausted_pool_is_waited_for() {
    let world = world_with(|database| {
        PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_millis(200))
            .connect_lazy_with(database.options())
    })
    .await;
    let mut inbox = world.inbox(&["billing"]).await;
    let pool = world.database.pool();
    let taken = [
        pool.acquire().await.expect("one"),
        pool.acquire().await.expect("another"),
    ];
    world.publish("m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    drop(taken);
    assert_eq!(settle(&mut inbox).await, Outcome::Processed);
    assert_all_done(&world, "billing", 1).await;
}

/// Whatever the session's time zone, the time is the database's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f81_the_row_has_the_databases_time_in_every_time_zone() {
    for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        let world = world_with(|database| pool(database.options().options([("TimeZone", zone)]), 5)).await;
        world.publish("m1").await;
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        let near = "SELECT count(*) FROM inbox_events WHERE processed_at BETWEEN clock_timestamp() - interval '1 minute' \
                    AND clock_timestamp()";
        assert_eq!(world.database.number(near).await, 1, "{zone}");
    }
}
