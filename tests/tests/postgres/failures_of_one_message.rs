//! Whose fault a failure is: what one message does to its session, or runs into, is its own failure, and the others go on.

use std::time::Duration;

use inbox_runtime::{HandlerError, Outcome, sqlx};
use inbox_tests::{
    PostgresDatabase, Step, TestBroker, TestConnection, TestDatabase, eventually, next,
    servers::postgres::Postgres as Server,
};

use crate::{World, handlers, publish, world_on};

/// Runs `ok1 bad ok2 … ok5`, one at a time, where `bad` does that each time. It comes to an end of its own, and the others are
/// done.
async fn bad_comes_to_an_end(group: &str, world: &World, step: impl Fn() -> Step + Send + Sync + 'static) -> String {
    world
        .probe
        .script(move |call| if call.id == "bad" { step() } else { Step::Ok });
    for id in ["ok1", "bad", "ok2", "ok3", "ok4", "ok5"] {
        world.publish(id).await;
    }
    let inbox = world.inbox(&[group]).await.spawn();
    eventually("all is settled", || async { inbox.report().acked == 6 }).await;
    let health = inbox.health();
    assert!(health.ready, "{health:?}");
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.dead_lettered), (5, 1), "{report}");
    for id in ["ok1", "ok2", "ok3", "ok4", "ok5"] {
        world.assert_done(group, id).await;
    }
    world.assert_untouched(group, "bad").await;
    assert_eq!(world.letter(group).await.message_id.as_deref(), Some("bad"));
    crate::letter(world).await
}

async fn bad(step: impl Fn() -> Step + Send + Sync + 'static) -> String {
    bad_comes_to_an_end("billing", &World::new().await, step).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g20_a_copy_that_is_left_unfinished() {
    for how in ["error", "timeout", "ok"] {
        let world = World::new().await;
        let mut inbox = handlers::builder(&world, "copier").build().await.expect("an inbox");
        world.publish("ok1").await;
        world.publish(&format!("bad-{how}")).await;
        world.publish("ok2").await;
        let mut outcomes = Vec::new();
        while outcomes
            .iter()
            .filter(|outcome| !matches!(outcome, Outcome::Failed))
            .count()
            < 3
        {
            outcomes.push(next(&mut inbox).await);
            assert!(outcomes.len() < 10, "{outcomes:?}");
        }
        assert!(!outcomes.contains(&Outcome::Deferred), "{how}: {outcomes:?}");
        assert_eq!(
            outcomes
                .iter()
                .filter(|outcome| **outcome == Outcome::Processed)
                .count(),
            2,
            "{outcomes:?}"
        );
        world.assert_untouched("copier", &format!("bad-{how}")).await;
        let letter = crate::letter(&world).await;
        assert!(!letter.is_empty(), "{letter}");
    }
}

/// The handler gives up on a statement, which fails a moment later, or goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g21_a_statement_that_is_given_up() {
    const FAILS: &str = "SELECT pg_sleep(0.3); SELECT 1/0";
    const GOES_ON: &str = "SELECT pg_sleep(30)";
    let given_up = |sql, next| Step::GiveUp(sql, Duration::from_millis(50), Box::new(next));
    let letter = bad(move || given_up(FAILS, Step::Fail("gave up"))).await;
    assert!(letter.contains("exhausted") && letter.contains("gave up"), "{letter}");
    let letter = bad(move || given_up(GOES_ON, Step::Fail("gave up"))).await;
    assert!(letter.contains("exhausted") && letter.contains("gave up"), "{letter}");
    let letter = bad(move || given_up(FAILS, Step::Ok)).await;
    assert!(letter.contains("ignored"), "{letter}");
}

/// The runtime's own timeout drops it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g21_a_statement_that_the_timeout_cuts_off() {
    for sql in ["SELECT pg_sleep(1.4); SELECT 1/0", "SELECT pg_sleep(30)"] {
        let letter = bad_comes_to_an_end("hasty", &World::new().await, move || Step::Exec(sql)).await;
        assert!(letter.contains("longer than its timeout"), "{letter}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g22_the_handlers_verdict_wins() {
    for code in ["40001", "40P01", "53400", "57P01", "08006", "42P01", "25006", "53100"] {
        let world = World::new().await;
        world.publish("m1").await;
        let error = world
            .database
            .try_exec(&format!(
                "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$"
            ))
            .await
            .expect_err("raised");
        let step = Step::raise(HandlerError::permanent(error));
        world.probe.script(move |_| step.clone());
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{code}");
        assert_eq!(world.probe.runs("billing", "m1"), 1, "{code}");
    }
}

/// Errors that look like an outage, but aren't of the handler's own connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g22_an_error_of_something_else_is_the_messages_own() {
    #[derive(Debug, thiserror::Error)]
    #[error("the price service could not be asked")]
    struct Outer(#[source] std::io::Error);
    let outer = || Outer(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
    let errors: [fn() -> HandlerError; 5] = [
        || sqlx::Error::PoolTimedOut.into(),
        || sqlx::Error::PoolClosed.into(),
        || sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::ConnectionReset)).into(),
        || std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(),
        || sqlx::Error::WorkerCrashed.into(),
    ];
    for error in errors {
        let letter = bad(move || Step::raise(error())).await;
        assert!(letter.starts_with("exhausted"), "{letter}");
    }
    let letter = bad(move || Step::raise(outer())).await;
    assert!(letter.contains("price service"), "{letter}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g22_g23_a_code_of_an_outage_that_only_one_message_meets() {
    for sql in [
        "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '53400'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '57P03'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '53100'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '58030'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '40001'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '08006'; END $$",
        "SELECT pg_terminate_backend(pg_backend_pid())",
    ] {
        let letter = bad(move || Step::Exec(sql)).await;
        assert!(letter.starts_with("exhausted"), "{sql}: {letter}");
    }
}

/// On a server of its own, since its other sessions have no room for locks meanwhile either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g23_a_message_that_needs_more_memory_than_there_is() {
    let server = Server::start().expect("a server");
    let world = world_on(PostgresDatabase::on(&server).await).await;
    let letter = bad_comes_to_an_end("billing", &world, || {
        Step::Exec("SELECT pg_advisory_xact_lock(n) FROM generate_series(1, 300000) n")
    })
    .await;
    assert!(letter.starts_with("exhausted"), "{letter}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g24_a_session_that_the_server_ends_is_the_messages_failure() {
    for setting in ["idle_in_transaction_session_timeout", "transaction_timeout"] {
        let world = World::new().await;
        let name = world.database.name().to_owned();
        world
            .database
            .exec(&format!("ALTER DATABASE {name} SET {setting} = '1500ms'"))
            .await;
        let letter = bad_comes_to_an_end("billing", &world, || Step::Sleep(Duration::from_millis(2500))).await;
        assert!(letter.starts_with("exhausted"), "{setting}: {letter}");
    }
}

/// A timeout of the role's that is shorter than `lock_wait`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g24_a_claim_that_the_roles_own_bound_ends_is_locked() {
    for setting in ["statement_timeout", "lock_timeout"] {
        let world = World::new().await;
        let name = world.database.name().to_owned();
        world
            .database
            .exec(&format!("ALTER DATABASE {name} SET {setting} = '200ms'"))
            .await;
        let inbox = world.inbox(&["billing"]).await.spawn();
        let lock = world.database.lock_claim("billing", "held").await;
        for id in ["ok1", "held", "ok2"] {
            world.publish(id).await;
        }
        eventually("the others are done", || async { inbox.report().processed == 2 }).await;
        eventually("it is locked", || async { inbox.report().locked > 0 }).await;
        assert!(inbox.health().ready, "{:?}", inbox.health());
        world.database.unlock(lock).await;
        eventually("all is settled", || async { inbox.report().acked == 3 }).await;
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert_eq!((report.processed, report.failed), (3, 0), "{setting}: {report}");
    }
}

/// A statement that waits for a row lock is given up, then `Ok`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g30_an_end_behind_a_statement_that_never_answers() {
    let world = World::new().await;
    world
        .database
        .exec("CREATE TABLE stock (n int); INSERT INTO stock VALUES (1)")
        .await;
    let mut stranger = world.database.stranger().await;
    stranger.exec("BEGIN; UPDATE stock SET n = 2").await.expect("locked");
    let letter = bad_comes_to_an_end("billing", &world, || {
        Step::GiveUp("UPDATE stock SET n = 3", Duration::from_millis(50), Box::new(Step::Ok))
    })
    .await;
    assert!(letter.contains("still running"), "{letter}");
}

/// Maintenance locks the inbox's table: the handler waits in place, keeps the order, and says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g32_a_locked_table_is_waited_for_in_order() {
    for lock in ["ACCESS EXCLUSIVE", "SHARE"] {
        let world = World::new().await;
        let inbox = world.inbox(&["billing"]).await.spawn();
        let mut stranger = world.database.stranger().await;
        stranger
            .exec(&format!("BEGIN; LOCK TABLE inbox_events IN {lock} MODE"))
            .await
            .expect("locked");
        publish(&world, 12).await;
        eventually("it is said why", || async {
            inbox
                .health()
                .reasons
                .iter()
                .any(|reason| reason.contains("lock on the table"))
        })
        .await;
        assert!(!inbox.health().ready);
        stranger.exec("COMMIT").await.expect("unlocked");
        eventually("all is settled", || async { inbox.report().acked == 12 }).await;
        assert!(inbox.health().ready, "{:?}", inbox.health());
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert_eq!((report.processed, report.failed, report.locked), (12, 0, 0), "{report}");
        let order: Vec<_> = world.probe.calls().into_iter().map(|call| call.id).collect();
        let expected: Vec<_> = (1..=12).map(|number| format!("m{number}")).collect();
        assert_eq!(order, expected, "{lock}");
    }
}

/// The code of the seal's own error, at another statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g41_which_statement_failed_decides() {
    for code in ["22012", "25P02", "26000", "40001"] {
        let world = World::new().await;
        world
            .database
            .exec(&format!(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF NEW.msg_id = 'bad' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END IF; RETURN NULL; END $$;
                 CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION refuse()"
            ))
            .await;
        let letter = bad_comes_to_an_end("billing", &world, || Step::Ok).await;
        assert!(
            letter.starts_with("exhausted") && letter.contains("refused"),
            "{code}: {letter}"
        );
    }
}

/// Unread rows are not waited for: to read all of them takes minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g47_a_result_that_is_left_unread() {
    let world = World::new().await;
    let mut inbox = handlers::builder(&world, "reader").build().await.expect("an inbox");
    world.publish("bad").await;
    world.publish("ok").await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    while next(&mut inbox).await != Outcome::Processed {}
    world.assert_done("reader", "ok").await;
}

/// A migration was forgotten: no attempt is counted, and health names what is missing. Then it is applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g75_what_is_missing_is_waited_for() {
    for (missing, made) in [
        ("INSERT INTO invoices VALUES (1)", "CREATE TABLE invoices (n int)"),
        ("SELECT discount FROM effects", "ALTER TABLE effects ADD discount int"),
        (
            "SELECT price(1)",
            "CREATE FUNCTION price(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ),
    ] {
        let world = World::new().await;
        world.probe.script(move |_| Step::Exec(missing));
        publish(&world, 5).await;
        let inbox = world.inbox(&["billing"]).await.spawn();
        eventually("it was tried several times", || async { inbox.report().deferred >= 5 }).await;
        let health = inbox.health();
        assert!(!health.ready && health.reasons[0].contains("migration"), "{health:?}");
        let report = inbox.report();
        assert_eq!(
            (report.failed, report.dead_lettered, report.acked),
            (0, 0, 0),
            "{report}"
        );
        assert_eq!(world.attempts("billing").await, 0);
        world.database.exec(made).await;
        world.broker.pass(Duration::from_secs(60)).await;
        eventually("all is done", || async {
            world.database.number("SELECT count(*) FROM effects").await == 5
        })
        .await;
        eventually("it is ready", || async { inbox.health().ready }).await;
        inbox.stop();
        let report = inbox.join().await.expect("stopped");
        assert_eq!((report.failed, report.dead_lettered), (0, 0), "{report}");
        assert_eq!(world.database.number("SELECT count(*) FROM effects").await, 5);
    }
}

/// Only one kind of message runs into it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g75_what_one_kind_of_message_lacks_ends_like_other_failures() {
    let letter = bad(|| Step::Exec("INSERT INTO nowhere VALUES (1)")).await;
    assert!(
        letter.starts_with("exhausted") && letter.contains("nowhere"),
        "{letter}"
    );
}
