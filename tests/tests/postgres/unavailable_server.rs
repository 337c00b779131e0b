//! A server that can't be used at the start: what is waited for, and what is an error at once.

use inbox_runtime::{Error, InboxHandle, sqlx::PgPool};
use inbox_tests::{
    PostgresDatabase, TestDatabase, ask, eventually, pool,
    process::{Mode, Signal, WorkerCommand},
    servers::postgres,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

use crate::{World, world_on};

/// Waits until the start waits for that reason.
async fn waits_for(inbox: &InboxHandle, why: &str) {
    eventually(why, async || {
        let health = inbox.health();
        assert!(health.live && !health.ready, "{health:?}");
        health
            .reasons
            .iter()
            .any(|reason| reason.starts_with("waiting for PostgreSQL (") && reason.contains(why))
    })
    .await;
}

async fn stop(inbox: InboxHandle) {
    inbox.stop();
    inbox.join().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g39_a_server_that_is_down_at_the_start_is_waited_for() {
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    world.publish("m1").await;
    server.stop();
    let builder = world.builder(&["billing"]).http_addr(([127, 0, 0, 1], 0));
    let inbox = builder.spawn().await.expect("an inbox");
    waits_for(&inbox, "Connection refused").await;
    let addr = inbox.http_addr().expect("an address");
    let (status, body) = ask(addr, "/healthz").await.expect("an answer");
    assert_eq!(status, 200, "{body}");
    let (status, body) = ask(addr, "/readyz").await.expect("an answer");
    assert!(
        status == 503 && body.contains(&format!("127.0.0.1:{}", server.port())),
        "{status} {body}"
    );

    server.resume().expect("the server");
    eventually("m1 is settled", async || world.settled("billing").await).await;
    let (status, body) = ask(addr, "/readyz").await.expect("an answer");
    assert_eq!(status, 200, "{body}");
    stop(inbox).await;
    world.assert_done("billing", "m1").await;
}

/// Connections are made, and nothing is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g39_a_server_that_is_silent_at_the_start_is_waited_for() {
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    world.publish("m1").await;
    server.pause();
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    waits_for(&inbox, "no answer within").await;
    server.unpause();
    eventually("m1 is settled", async || world.settled("billing").await).await;
    stop(inbox).await;
    world.assert_done("billing", "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g39_a_signal_ends_the_wait() {
    let world = World::new().await;
    let broker = tempfile::tempdir().expect("a folder");
    let broker = format!("embedded:{}", broker.path().join("broker.db").display());
    for port in [inbox_tests::servers::CLOSED_PORT, black_hole().await.0] {
        let url = format!("postgres://postgres:hidden@127.0.0.1:{port}/{}", world.database.name());
        let mut worker =
            WorkerCommand::new(env!("CARGO_BIN_EXE_worker"), Mode::Main, &broker, &url, "one-postgres").start();
        worker.logs("the start waits for the database").await;
        worker.signal(Signal::TERM);
        let ended = worker.end().await;
        assert!(ended.status.success(), "{ended:#?}");
        let log = ended.log.join("\n");
        assert!(
            log.contains("PostgreSQL (DATABASE_URL)") && !log.contains("hidden"),
            "{log}"
        );
    }
}

/// A port that takes connections and says nothing.
async fn black_hole() -> (u16, JoinHandle<()>) {
    fake(|_| None).await
}

/// A server that answers each connection with an error, or not at all.
async fn fake(
    answer: impl Fn(usize) -> Option<(&'static str, &'static str)> + Send + 'static,
) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(async move {
        let mut held = Vec::new();
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let Some((code, message)) = answer(number) else {
                held.push(stream);
                continue;
            };
            let mut startup = [0; 512];
            let _ = stream.read(&mut startup).await;
            let fields = format!("SFATAL\0VFATAL\0C{code}\0M{message}\0Fauth.c\0L335\0Rfake\0\0");
            let length = u32::try_from(fields.len() + 4).expect("short").to_be_bytes();
            let _ = stream.write_all(&[b"E", &length[..], fields.as_bytes()].concat()).await;
        }
    });
    (port, server)
}

fn on(port: u16) -> PgPool {
    pool(
        format!("postgres://app:hidden@127.0.0.1:{port}/app?sslmode=disable")
            .parse()
            .expect("a URL"),
        10,
    )
}

/// Starts on a server that only ever says that.
async fn refused(code: &'static str, message: &'static str) -> Result<InboxHandle, Error> {
    let (port, _server) = fake(move |_| Some((code, message))).await;
    let world = World::new().await;
    world.builder(&["billing"]).store(on(port)).spawn().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g63_what_waiting_does_not_mend_is_an_error_in_the_words_of_the_server() {
    for (code, message) in [
        ("28P01", "password authentication failed for user \"app\""),
        ("28000", "no pg_hba.conf entry for host \"10.0.0.1\""),
        ("28000", "role \"app\" does not exist"),
        ("3D000", "database \"app\" does not exist"),
        ("42501", "permission denied for database \"app\""),
    ] {
        let error = refused(code, message).await.expect_err(message);
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(
                text.contains(message) && text.contains("`.store(…)`") && text.contains("correct the URL"),
                "{text}"
            );
            assert!(!text.contains("at line") && !text.contains("hidden"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g39_what_may_pass_is_waited_for() {
    for (code, message) in [
        ("57P03", "the database system is starting up"),
        ("57P01", "terminating connection due to administrator command"),
        ("53300", "sorry, too many clients already"),
        ("08006", "server closed the connection unexpectedly"),
        ("53100", "could not write to file: no space left on device"),
    ] {
        let inbox = refused(code, message).await.expect(message);
        waits_for(&inbox, message).await;
        let reasons = inbox.health().reasons.join("; ");
        assert!(!reasons.contains("at line"), "{reasons}");
        stop(inbox).await;
    }
}

/// A lasting error that appears while the start waits ends the inbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g63_a_lasting_error_after_a_wait_ends_the_inbox() {
    let (port, _server) = fake(|number| {
        Some(match number {
            0 => ("57P03", "the database system is starting up"),
            _ => ("3D000", "database \"app\" does not exist"),
        })
    })
    .await;
    let world = World::new().await;
    let inbox = world
        .builder(&["billing"])
        .store(on(port))
        .spawn()
        .await
        .expect("it waits");
    let health = inbox.health_handle();
    let error = inbox.join().await.expect_err("no database").to_string();
    assert!(error.contains("database \"app\" does not exist"), "{error}");
    assert!(!health.health().live);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g63_a_role_and_a_database_that_do_not_exist() {
    let world = World::new().await;
    let options = world.database.options();
    for (options, words) in [
        (
            options.clone().username("nobody_at_all"),
            "role \"nobody_at_all\" does not exist",
        ),
        (
            options.clone().database("nothing_at_all"),
            "database \"nothing_at_all\" does not exist",
        ),
        (
            options.options([("search_path", "nowhere")]),
            "search_path names no schema",
        ),
    ] {
        let builder = world.builder(&["billing"]).store(pool(options, 10));
        let error = builder.build().await.expect_err(words).to_string();
        assert!(error.contains(words) && !error.contains("at line"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g63_a_url_that_cannot_be_read_is_an_error_that_shows_no_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("inbox.toml");
    std::fs::write(&config, "postgres_url = \"postgres://app:hidden@localhost:port/app\"").expect("written");
    let error = inbox_runtime::Inbox::builder()
        .config_file(config)
        .broker(inbox_runtime::Embedded::memory())
        .state(inbox_tests::Probe::default())
        .groups(["billing"])
        .select(|meta| meta.name.starts_with("inbox_tests::handlers::postgres::"))
        .build()
        .await
        .expect_err("no URL")
        .to_string();
    assert!(
        error.contains("inbox.toml:1") && error.contains("invalid port") && error.contains("postgres://user"),
        "{error}"
    );
    assert!(!error.contains("hidden"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g76_a_database_that_can_only_be_read_is_not_ready() {
    let world = World::new().await;
    world.publish("m1").await;
    for tables in [false, true] {
        if tables {
            inbox_runtime::migrate(&world.database.pool())
                .await
                .expect("the tables");
        }
        let name = world.database.name();
        let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
        world.database.exec(&read_only).await;
        let own = pool(world.database.options(), 10);
        let inbox = world.builder(&["billing"]).store(own).spawn().await.expect("an inbox");
        // The server refuses to make the tables; where they exist, the trial insert fails.
        let why = if tables {
            "read_only is on"
        } else {
            "read-only transaction"
        };
        waits_for(&inbox, why).await;
        let mut stranger = world.database.stranger().await;
        let reset = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
        for sql in ["SET default_transaction_read_only = off", &reset] {
            let sql = inbox_runtime::sqlx::AssertSqlSafe(sql.to_owned());
            inbox_runtime::sqlx::raw_sql(sql)
                .execute(&mut stranger)
                .await
                .expect("set");
        }
        eventually("it is ready", async || inbox.health().ready).await;
        eventually("m1 is settled", async || world.settled("billing").await).await;
        stop(inbox).await;
        world
            .database
            .exec(
                "DROP TABLE inbox_events, inbox_attempts, inbox_dead_letters, inbox_outbox, inbox_outbox_later, \
                 inbox_outbox_parked, _inbox_migrations",
            )
            .await;
    }
}

/// Maintenance that holds our table's lock is waited for, and health names the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g39_a_table_that_is_locked_at_the_start_is_waited_for() {
    use inbox_runtime::sqlx::Connection;

    let world = World::new().await;
    inbox_runtime::migrate(&world.database.pool())
        .await
        .expect("the tables");
    let mut stranger = world.database.stranger().await;
    let mut held = stranger.begin().await.expect("a transaction");
    inbox_runtime::sqlx::raw_sql("LOCK TABLE inbox_events IN EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .expect("the lock");
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    waits_for(&inbox, "lock on the table").await;
    held.rollback().await.expect("rolled back");
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
}

/// The server's own source has lines, too: they are no lines of a statement.
#[tokio::test]
async fn g64_no_text_has_a_line_of_the_servers_source() {
    let database = PostgresDatabase::fresh().await;
    let missing = || async {
        let query = inbox_runtime::sqlx::query("SELECT * FROM nothing_at_all");
        query.execute(&database.pool()).await.expect_err("no table")
    };
    assert!(
        missing().await.to_string().contains("at line"),
        "sqlx has it no more: drop what removes it"
    );
    let wrapped = anyhow::Error::from(missing().await).context("booking");
    for error in [
        inbox_runtime::HandlerError::from(missing().await),
        inbox_runtime::HandlerError::from(wrapped),
        inbox_runtime::HandlerError::from(Box::new(missing().await)),
    ] {
        let report = error.report();
        assert!(
            report.contains("\"nothing_at_all\" does not exist") && !report.contains("at line"),
            "{report}"
        );
    }
}
