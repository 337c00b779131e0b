//! Behind a pooler that gives each transaction whatever connection to the server is free.

use std::time::Duration;

use inbox_runtime::{
    Inbox, Outcome,
    sqlx::{self, Connection, PgPool, postgres::PgConnectOptions},
};
use inbox_tests::{
    Settled, Step, TestBroker, TestConnection, TestDatabase, eventually, pool,
    process::{Mode, WorkerCommand},
    servers::PgBouncer,
};

use crate::{World, assert_all_done, shared, world_on};

/// A world whose inbox has four workers on a pooler with two connections.
async fn pooled(cached: usize) -> Option<(World, PgBouncer)> {
    let pooler = PgBouncer::before(shared()?.port(), 2)?;
    let database = inbox_tests::PostgresDatabase::fresh().await;
    let options: PgConnectOptions = pooler.url(database.name()).parse().expect("a URL");
    let own = pool(options.statement_cache_capacity(cached), 8);
    Some((world_on(database.with_pool(own)).await, pooler))
}

async fn inbox(world: &World) -> Inbox {
    world
        .builder(&["audit"])
        .transaction_pooler()
        .lock_wait(Duration::from_millis(500))
        .build()
        .await
        .expect("an inbox")
}

/// Failures and duplicates too: attempts and dead letters go through the pooler as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_four_workers_on_two_connections() {
    four_workers(0).await;
}

/// With a pool that knows nothing of the pooler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_four_workers_on_two_connections_with_a_cache_of_statements() {
    four_workers(100).await;
}

async fn four_workers(cached: usize) {
    let Some((world, _pooler)) = pooled(cached).await else {
        return;
    };
    for number in 1..=150 {
        world.publish(&format!("m{number}")).await;
        if number % 3 == 0 {
            world.publish(&format!("m{number}")).await;
        }
    }
    world.publish("bad").await;
    world.probe.script(|call| match (call.id.as_str(), call.run) {
        ("bad", _) => Step::Permanent("bad"),
        (id, 1) if id.ends_with('7') => Step::Fail("halfway"),
        _ => Step::Ok,
    });
    let inbox = inbox(&world).await.spawn();
    eventually("all is settled", || async {
        world.broker.settled("audit", ">").await == Some(Settled::ALL)
    })
    .await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.duplicate, report.failed),
        (150, 50, 15),
        "{report}"
    );
    assert_eq!((report.dead_lettered, report.deferred), (1, 0), "{report}");
    world.database.exec("DELETE FROM inbox_dead_letters").await;
    assert_all_done(&world, "audit", 150).await;
}

/// The pooler is not configured. What other programs write through it must not fail, neither while the inbox runs nor when it
/// has stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g40_a_pooler_that_is_not_configured_is_noticed() {
    for cached in [0, 100] {
        let Some((world, pooler)) = pooled(cached).await else {
            return;
        };
        for number in 1..=100 {
            world.publish(&format!("m{number}")).await;
        }
        world.publish("bad").await;
        world.probe.script(|call| match call.id.as_str() {
            "bad" => Step::Permanent("bad"),
            _ => Step::Ok,
        });
        let inbox = world.builder(&["audit"]).spawn().await.expect("an inbox");
        let others = others(&pooler, world.database.name());
        write(&others, 150).await;
        eventually("all is settled", || async {
            world.broker.settled("audit", ">").await == Some(Settled::ALL)
        })
        .await;
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert_eq!(
            (report.processed, report.dead_lettered, report.deferred),
            (100, 1, 0),
            "{report}"
        );
        write(&others, 50).await;
        assert_eq!(world.database.number("SELECT count(*) FROM others").await, 200);
        world.database.exec("DELETE FROM inbox_dead_letters").await;
        assert_all_done(&world, "audit", 100).await;
    }
}

/// While other clients keep every connection of the pooler moving, it is noticed as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g40_a_busy_pooler_is_noticed() {
    let Some((world, pooler)) = pooled(0).await else {
        return;
    };
    for number in 1..=100 {
        world.publish(&format!("m{number}")).await;
    }
    let others = others(&pooler, world.database.name());
    // Two at a time can't make the table.
    write(&others, 1).await;
    let busy: Vec<_> = (0..6)
        .map(|_| {
            let others = others.clone();
            tokio::spawn(async move { write(&others, 100).await })
        })
        .collect();
    let inbox = world.builder(&["audit"]).spawn().await.expect("an inbox");
    eventually("all is settled", || async {
        world.broker.settled("audit", ">").await == Some(Settled::ALL)
    })
    .await;
    for busy in busy {
        busy.await.expect("every write succeeds");
    }
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.deferred), (100, 0), "{report}");
    write(&others, 50).await;
}

/// A pool of another program, through the pooler.
fn others(pooler: &PgBouncer, database: &str) -> PgPool {
    let options: PgConnectOptions = pooler.url(database).parse().expect("a URL");
    pool(options.statement_cache_capacity(0), 4)
}

/// Each write must succeed.
async fn write(others: &PgPool, count: usize) {
    for number in 0..count {
        let written = sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS others (n bigint GENERATED ALWAYS AS IDENTITY); INSERT INTO others DEFAULT VALUES",
        );
        let written = written.execute(others).await;
        assert!(written.is_ok(), "write {number}: {written:?}");
    }
}

/// The statement that is cancelled is the one that waits, on whichever connection it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_a_claim_that_waits_too_long_is_cancelled() {
    let Some((world, _pooler)) = pooled(0).await else {
        return;
    };
    let mut inbox = inbox(&world).await;
    let mut stranger = world.database.stranger().await;
    let mut held = stranger.begin().await.expect("a transaction");
    held.exec("INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('audit', 'x', 0)")
        .await
        .expect("the claim");
    world.publish("x").await;
    assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::Locked);
    held.rollback().await.expect("rolled back");
    assert_eq!(crate::settle(&mut inbox).await, Outcome::Processed);
    world.assert_done("audit", "x").await;
}

/// What a handler does to its transaction is detected, though not prevented.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_a_broken_transaction_is_detected() {
    let Some((world, _pooler)) = pooled(0).await else {
        return;
    };
    let steps = [
        Step::Swallow("SELECT 1/0", Box::new(Step::Ok)),
        Step::Swallow("ROLLBACK", Box::new(Step::Ok)),
        Step::Swallow("COMMIT", Box::new(Step::Fail("and then"))),
    ];
    let mut inbox = inbox(&world).await;
    for (number, step) in steps.into_iter().enumerate() {
        world.probe.script(move |_| step.clone());
        world.publish(&format!("b{number}")).await;
        assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::DeadLettered);
    }
    world.probe.script(|_| Step::Ok);
    world.publish("m1").await;
    assert_eq!(inbox_tests::next(&mut inbox).await, Outcome::Processed);
    world.assert_done("audit", "m1").await;
}

/// The pooler is not configured: whatever other clients have prepared on its connections, a call does what it says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g05_dead_letters_through_a_pooler_that_is_not_configured() {
    const LETTERS: i64 = 60;
    let Some((world, pooler)) = pooled(100).await else {
        return;
    };
    let direct = world_on(world.database.with_pool(pool(world.database.options(), 4))).await;
    direct.probe.script(|_| Step::Permanent("refused"));
    let mut made = direct.inbox(&["billing"]).await;
    for number in 0..LETTERS {
        direct.publish(&format!("m{number}")).await;
        assert_eq!(inbox_tests::next(&mut made).await, Outcome::DeadLettered);
    }
    let ids: Vec<i64> = direct.letters("billing").await.iter().map(|letter| letter.id).collect();
    // Clients with statements of their own under sqlx's names, which the pooler mixes with ours.
    let client = || async {
        let options: PgConnectOptions = pooler.url(world.database.name()).parse().expect("a URL");
        let pool = pool(options, 2);
        for number in 0..100_i64 {
            let _ = sqlx::query("SELECT $1::bigint").bind(number).execute(&pool).await;
            let _ = sqlx::query("SELECT $1::bigint + 1").bind(number).execute(&pool).await;
        }
    };
    let calls = |worker: usize| {
        let (letters, ids) = (world.dead_letters(), &ids);
        async move {
            for round in 0..ids.len() {
                let id = ids[(round + worker * 7) % ids.len()];
                let found = letters.get(id).await.expect("read");
                assert_eq!(found.map(|letter| letter.id), Some(id));
                assert!(!letters.discard(i64::MAX - id).await.expect("looked for"));
                assert!(!letters.replay(i64::MAX - id).await.expect("looked for"));
            }
        }
    };
    tokio::join!(client(), client(), calls(0), calls(1), calls(2), calls(3));
    let left = "SELECT count(*) FROM inbox_dead_letters WHERE replay_at IS NULL";
    assert_eq!(world.database.number(left).await, LETTERS);
}

/// So does a claim by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g05_claims_by_hand_through_a_pooler_that_is_not_configured() {
    const CLAIMS: usize = 40;
    let Some((world, _pooler)) = pooled(100).await else {
        return;
    };
    inbox_runtime::migrate(&world.database.pool())
        .await
        .expect("the tables");
    let claims = |worker: usize| {
        let pool = world.database.pool();
        async move {
            for number in 0..CLAIMS {
                let mut tx = pool.begin().await.expect("a transaction");
                let id = format!("{worker}-{number}");
                let claimed = inbox_runtime::claim(&mut *tx, "billing", &id).await.expect("claimed");
                assert!(!claimed.is_duplicate());
                tx.commit().await.expect("committed");
            }
        }
    };
    tokio::join!(claims(0), claims(1), claims(2), claims(3));
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_events").await,
        4 * 40,
        "{CLAIMS} of each"
    );
}

/// A program that is told by its environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_a_program_behind_a_pooler() {
    let Some(server) = shared() else { return };
    let Some(pooler) = PgBouncer::before(server.port(), 2) else {
        return;
    };
    let world = inbox_tests::World::<inbox_tests::EmbeddedFile, inbox_tests::PostgresDatabase>::new().await;
    for number in 0..100 {
        world.publish(&format!("m{number}")).await;
    }
    let broker = world.broker.url().expect("a URL");
    let ended = WorkerCommand::new(
        env!("CARGO_BIN_EXE_worker"),
        Mode::Main,
        &broker,
        &pooler.url(world.database.name()),
        "many-postgres",
    )
    .env("INBOX_TRANSACTION_POOLER", "true")
    .start();
    eventually("all is settled", || async {
        world.broker.settled("many-postgres", "order.created").await == Some(Settled::ALL)
    })
    .await;
    let ended = ended.stop().await;
    assert_eq!(ended.all_runs(), 100);
    assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 100);
    assert_eq!(
        world
            .database
            .number("SELECT count(DISTINCT msg_id) FROM effects")
            .await,
        100
    );
}
