//! What a handler leaves on its session is gone before the next message, and what the program has set on it stays.

use std::time::Duration;

use inbox_runtime::{Outcome, sqlx};
use inbox_tests::{Step, TestConnection, TestDatabase, eventually, next};

use crate::{World, publish, world_with};

/// Runs `m1` with that statement, then `m2` with the other one, on one session where that can be.
async fn left(world: &World, first: &'static str, then: &'static str) -> Outcome {
    world.probe.script(move |call| match call.id.as_str() {
        "m1" => Step::Exec(first),
        "m2" => Step::Exec(then),
        _ => Step::Ok,
    });
    publish(world, 3).await;
    let inbox = world.inbox(&["patient"]).await.spawn();
    eventually(first, || async {
        inbox.report().acked == 3 || inbox.report().failed > 2
    })
    .await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    if report.processed == 3 {
        Outcome::Processed
    } else {
        Outcome::Failed
    }
}

/// A statement that fails unless that is so.
macro_rules! unless {
    ($condition:literal) => {
        concat!("SELECT 1/(", $condition, ")::int")
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g06_g46_what_a_handler_leaves_on_the_session_is_gone() {
    for (first, then) in [
        (
            "CREATE SCHEMA tenant; SET search_path TO tenant",
            unless!("current_schema() = 'public'"),
        ),
        (
            "SET client_encoding = 'LATIN1'",
            unless!("current_setting('client_encoding') = 'UTF8'"),
        ),
        (
            "SET statement_timeout = '7s'",
            unless!("current_setting('statement_timeout') = '0'"),
        ),
        (
            "SET lock_timeout = '7s'",
            unless!("current_setting('lock_timeout') = '0'"),
        ),
        (
            "SET TIME ZONE 'Asia/Tokyo'",
            unless!("current_setting('TimeZone') = 'UTC'"),
        ),
        (
            "SET app.tenant = 'one'",
            unless!("coalesce(current_setting('app.tenant', true), '') = ''"),
        ),
        (
            "SET session_replication_role = replica",
            unless!("current_setting('session_replication_role') = 'origin'"),
        ),
        (
            "SET default_transaction_isolation = serializable",
            unless!("current_setting('transaction_isolation') = 'read committed'"),
        ),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            unless!("current_setting('transaction_read_only') = 'off'"),
        ),
        (
            "SET TRANSACTION READ ONLY",
            unless!("current_setting('transaction_read_only') = 'off'"),
        ),
        (
            "SET default_transaction_read_only = off",
            unless!("current_setting('default_transaction_read_only') = 'on'"),
        ),
        ("SET ROLE pg_monitor", unless!("current_user = session_user")),
        (
            "SELECT pg_advisory_lock(7)",
            unless!("NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"),
        ),
        ("CREATE TEMP TABLE scratch (n int)", "CREATE TEMP TABLE scratch (n int)"),
        (
            "CREATE TEMP TABLE effects (grp text, msg_id text)",
            unless!("to_regclass('pg_temp.effects') IS NULL"),
        ),
        (
            "LISTEN news",
            unless!("NOT EXISTS (SELECT FROM pg_listening_channels())"),
        ),
        (
            "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
            "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
        ),
    ] {
        let world = World::new().await;
        assert_eq!(left(&world, first, then).await, Outcome::Processed, "{first}");
        // Nor does the pool have it.
        let pool = world.database.pool();
        for _ in 0..3 {
            let mut conn = pool.acquire().await.expect("a connection");
            if !first.contains("default_transaction_read_only") {
                conn.exec(then).await.unwrap_or_else(|error| panic!("{first}: {error}"));
            }
            conn.exec("DROP TABLE IF EXISTS pg_temp.scratch")
                .await
                .expect("cleared");
            conn.exec("CLOSE ALL").await.expect("cleared");
        }
        assert_eq!(
            world.database.number("SELECT count(*) FROM inbox_events").await,
            3,
            "{first}"
        );
        assert_eq!(
            world.database.number("SELECT count(*) FROM effects").await,
            3,
            "{first}"
        );
    }
}

/// Locks outlive a rollback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g46_session_locks_of_a_handler_that_fails_are_gone() {
    for then in ["fail", "abort"] {
        let world = World::new().await;
        world.probe.script(move |call| match (call.run, then) {
            (1, "fail") => Step::Swallow("SELECT pg_advisory_lock(7)", Box::new(Step::Fail("then"))),
            (1, _) => Step::Swallow("SELECT pg_advisory_lock(7)", Box::new(Step::Exec("SELECT 1/0"))),
            _ => Step::Ok,
        });
        publish(&world, 1).await;
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
        assert_eq!(
            world
                .database
                .number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
                .await,
            0
        );
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
}

/// Another schema has tables of the same names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g06_claims_stay_in_the_schema_that_was_found_at_the_start() {
    let world = World::new().await;
    inbox_runtime::migrate(&world.database.pool()).await.expect("tables");
    world
        .database
        .exec("CREATE SCHEMA tenant; CREATE TABLE tenant.inbox_events (LIKE public.inbox_events INCLUDING ALL)")
        .await;
    world.probe.script(|_| Step::Exec("SET search_path TO tenant, public"));
    publish(&world, 20).await;
    let inbox = world.inbox(&["audit"]).await.spawn();
    eventually("all is settled", || async { inbox.report().acked == 20 }).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
    assert_eq!(
        world.database.number("SELECT count(*) FROM tenant.inbox_events").await,
        0
    );
    assert_eq!(
        world.database.number("SELECT count(*) FROM public.inbox_events").await,
        20
    );
}

/// What the program has set on the connections of its pool is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g06_what_the_pool_has_set_is_kept() {
    let world = world_with(|database| {
        sqlx::postgres::PgPoolOptions::new()
            .max_connections(3)
            .after_connect(|conn, _| {
                Box::pin(async move {
                    conn.exec("SET statement_timeout = '77s'; SET search_path TO own, public; SET application_name = 'it''s \\ mine'")
                        .await
                })
            })
            .connect_lazy_with(database.options())
    })
    .await;
    world.database.exec("CREATE SCHEMA own").await;
    world.probe.script(|call| match call.id.as_str() {
        "m1" => Step::Exec("SET statement_timeout = '5s'; SET search_path TO public"),
        _ => Step::Exec(unless!("current_setting('statement_timeout') = '77s' AND current_schema() = 'own' AND current_setting('application_name') = 'it''s \\ mine'")),
    });
    publish(&world, 4).await;
    let inbox = world.inbox(&["patient"]).await.spawn();
    eventually("all is settled", || async { inbox.report().acked == 4 }).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.failed), (4, 0), "{report}");
    assert_eq!(world.database.number("SELECT count(*) FROM own.inbox_events").await, 4);
    for _ in 0..5 {
        let timeout: String = sqlx::query_scalar("SHOW statement_timeout")
            .fetch_one(&world.database.pool())
            .await
            .expect("a setting");
        assert_eq!(timeout, "77s");
    }
}

/// A handler that uses temporary tables does it for each message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g46_temporary_tables_work_for_every_message() {
    let world = World::new().await;
    world
        .probe
        .script(|_| Step::Exec("CREATE TEMP TABLE scratch (n int); INSERT INTO scratch VALUES (1)"));
    publish(&world, 20).await;
    let inbox = world.inbox(&["billing"]).await.spawn();
    eventually("all is settled", || async { inbox.report().acked == 20 }).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.failed), (20, 0), "{report}");
}

/// The setting is turned off after the start: commits are durable all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g07_what_is_acknowledged_is_durable() {
    let world = World::new().await;
    let name = world.database.name().to_owned();
    let mut inbox = world.inbox(&["patient"]).await;
    world
        .database
        .exec(&format!("ALTER DATABASE {name} SET synchronous_commit = off"))
        .await;
    // The deferred trigger runs at the commit, after the seal.
    world
        .database
        .exec(
            "CREATE TABLE seen (durable text);
             CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER look AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION look()",
        )
        .await;
    world.probe.script(|call| match call.id.as_str() {
        "m2" => Step::Exec("SET LOCAL synchronous_commit = off"),
        _ => Step::Ok,
    });
    publish(&world, 3).await;
    for _ in 0..3 {
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
    assert_eq!(
        world
            .database
            .number("SELECT count(*) FROM seen WHERE durable = 'on'")
            .await,
        3
    );
    assert_eq!(
        world
            .database
            .number("SELECT count(*) FROM seen WHERE durable <> 'on'")
            .await,
        0
    );
}

/// The transaction of a message doesn't begin while the one before it is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g45_a_transaction_begins_when_its_message_does() {
    for group in ["at-least-once", "patient"] {
        let world = World::new().await;
        world
            .flaky
            .watch_acks(|| tokio::time::sleep(Duration::from_millis(1500)));
        world.database.exec("CREATE TABLE ages (age interval)").await;
        world
            .probe
            .script(|_| Step::Exec("INSERT INTO ages VALUES (clock_timestamp() - now())"));
        publish(&world, 4).await;
        let inbox = world.inbox(&[group]).await.spawn();
        eventually("all is settled", || async { inbox.report().acked == 4 }).await;
        inbox.stop();
        inbox.join().await.expect("stopped");
        assert_eq!(world.database.number("SELECT count(*) FROM ages").await, 4);
        assert_eq!(
            world
                .database
                .number("SELECT count(*) FROM ages WHERE age > interval '1 second'")
                .await,
            0
        );
    }
}
