//! A database that can't be used at the start: what is waited for, what is an error at once, and what health says meanwhile.

use std::{process::Stdio, time::Duration};

use inbox_runtime::{Embedded, Error, Inbox, InboxHandle, MigrateMode, migrate, sqlx::SqlitePool};
use inbox_tests::{
    SqliteFile, TestBroker, TestDatabase, World, ask, embedded_suite, eventually, process::WorkerCommand,
};
use rustix::process::{Pid, Signal, kill_process};

embedded_suite!(
    g76_without_its_tables_an_inbox_is_not_ready_and_says_what_to_run,
    g39_a_stop_ends_the_wait,
    g39_an_inbox_that_was_stopped_before_it_had_started_has_nothing_to_do,
    g64_tables_that_vanish_are_no_outage,
);

/// Waits until the start waits, and says why.
async fn waits(inbox: &InboxHandle) -> String {
    eventually("the start waits", async || {
        let health = inbox.health();
        assert!(health.live && !health.ready, "{health:?}");
        health.reasons.iter().any(|reason| reason.starts_with("waiting for"))
    })
    .await;
    inbox.health().reasons.join("; ")
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

async fn g76_without_its_tables_an_inbox_is_not_ready_and_says_what_to_run<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let builder = world.builder(&["billing"]).migrate(MigrateMode::Off);
    let inbox = builder.http_addr(([127, 0, 0, 1], 0)).spawn().await.expect("an inbox");
    let why = waits(&inbox).await;
    assert_says(
        &why,
        &[
            "(`.store(…)`)",
            "the inbox's tables are missing",
            "INBOX_MIGRATE=auto",
            "inbox_runtime::migrate",
        ],
    );
    assert!(!why.contains("not available") && !why.contains("at line"), "{why}");
    let addr = inbox.http_addr().expect("an address");
    let (status, body) = ask(addr, "/healthz").await.expect("an answer");
    assert_eq!(status, 200, "{body}");
    let (status, body) = ask(addr, "/readyz").await.expect("an answer");
    assert_eq!(status, 503, "{body}");
    assert_says(&body, &["tables are missing"]);

    migrate(&world.database.pool()).await.expect("the tables");
    eventually("m1 is settled", async || world.settled("billing").await).await;
    let (status, body) = ask(addr, "/readyz").await.expect("an answer");
    assert_eq!(status, 200, "{body}");
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(
        (report.processed, report.deferred, report.failed),
        (1, 0, 0),
        "{report}"
    );
    world.assert_done("billing", "m1").await;
}

async fn g39_a_stop_ends_the_wait<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let off = || world.builder(&["billing"]).migrate(MigrateMode::Off);
    let inbox = off().spawn().await.expect("an inbox");
    waits(&inbox).await;
    let health = inbox.health_handle();
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!(report, inbox_runtime::Report::default());
    assert!(!health.health().live);

    // As a signal does.
    let builder = off();
    let health = builder.health_handle();
    assert!(health.health().live && !health.health().ready);
    let waiting = async move {
        eventually("it waits", async || health.health().reasons.len() > 1).await;
    };
    let report = builder.shutdown(waiting).run().await.expect("stopped");
    assert_eq!(report, inbox_runtime::Report::default());
    assert!(world.database.try_exec("SELECT * FROM inbox_events").await.is_err());
}

async fn g39_an_inbox_that_was_stopped_before_it_had_started_has_nothing_to_do<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let off = world.builder(&["billing"]).migrate(MigrateMode::Off);
    let stopped = off.shutdown(tokio::time::sleep(Duration::from_millis(50)));
    let mut inbox = stopped.build().await.expect("an inbox");
    assert_eq!(inbox.handlers().count(), 0);
    assert_eq!(inbox.process_one(Duration::MAX).await.expect("nothing"), None);
    inbox.run_until_idle().await.expect("nothing");
    let report = inbox.spawn().join().await.expect("stopped");
    assert_eq!(report, inbox_runtime::Report::default());
}

async fn g64_tables_that_vanish_are_no_outage<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.database.exec("ALTER TABLE inbox_events RENAME TO hidden").await;
    world.publish("m1").await;
    eventually("it isn't ready", async || !inbox.health().ready).await;
    let why = inbox.health().reasons.join("; ");
    assert_says(
        &why,
        &["the inbox's tables are missing", "INBOX_MIGRATE=auto", "inbox_events"],
    );
    assert!(!why.contains("not available") && !why.contains("at line"), "{why}");
    world.database.exec("ALTER TABLE hidden RENAME TO inbox_events").await;
    eventually("m1 is settled", async || world.settled("billing").await).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
}

/// An inbox on that SQLite URL, as an environment would name it.
async fn on_file(folder: &std::path::Path, url: &str) -> Result<InboxHandle, Error> {
    let config = folder.join("inbox.toml");
    std::fs::write(&config, format!("sqlite_url = \"{url}\"")).expect("written");
    Inbox::builder()
        .config_file(config)
        .broker(Embedded::memory())
        .state(inbox_tests::Probe::default())
        .groups(["billing"])
        .select(|meta| meta.name.starts_with("inbox_tests::handlers::sqlite::"))
        .spawn()
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g74_a_missing_file_is_made_only_where_the_url_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("nope.db");
    let url = format!("sqlite://{}", file.display());
    let error = on_file(folder.path(), &url).await.expect_err("no file").to_string();
    assert_says(
        &error,
        &["inbox.toml:1", "nope.db does not exist", &format!("{url}?mode=rwc")],
    );
    assert!(!file.exists(), "it was made");

    let deeper = format!("sqlite://{}?mode=rwc", folder.path().join("no/nope.db").display());
    let error = on_file(folder.path(), &deeper)
        .await
        .expect_err("no folder")
        .to_string();
    assert_says(&error, &["its folder", "does not exist"]);

    std::fs::write(&file, "x".repeat(5000)).expect("written");
    let error = on_file(folder.path(), &url).await.expect_err("no database").to_string();
    assert_says(&error, &["nope.db can't be used", "not a database"]);
    std::fs::remove_file(&file).expect("removed");

    let inbox = on_file(folder.path(), &format!("{url}?mode=rwc"))
        .await
        .expect("an inbox");
    assert!(inbox.health().ready, "{:?}", inbox.health());
    inbox.stop();
    inbox.join().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g76_a_file_that_can_only_be_read_is_not_ready() {
    let database = SqliteFile::fresh().await;
    for tables in [false, true] {
        if tables {
            migrate(&database.pool()).await.expect("the tables");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("{}?mode=ro", database.url());
        let inbox = on_file(folder.path(), &url).await.expect("an inbox");
        assert_says(
            &waits(&inbox).await,
            &["SQLite (", "inbox.toml:1)", "readonly database"],
        );
        inbox.stop();
        inbox.join().await.expect("stopped");
    }
}

/// The program `silent` in a folder of its own, with these variables.
fn silent(folder: &std::path::Path, variables: &[(&str, &str)]) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_silent"));
    command
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .env("INBOX_BROKER_URL", "embedded:broker.db")
        .env("INBOX_GROUPS", "linked")
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[test]
fn g74_a_program_without_a_subscriber_says_why_it_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = silent(folder.path(), &[("DATABASE_URL", "sqlite://nope.db")]).output();
    let output = output.expect("the program");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_says(
        &said,
        &["DATABASE_URL", "nope.db does not exist", "sqlite://nope.db?mode=rwc"],
    );
    assert!(!folder.path().join("nope.db").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g74_a_program_without_a_subscriber_prints_warnings() {
    let folder = tempfile::tempdir().expect("a folder");
    SqlitePool::connect(&format!("sqlite://{}?mode=rwc", folder.path().join("app.db").display()))
        .await
        .expect("a file")
        .close()
        .await;
    let variables = [("DATABASE_URL", "sqlite://app.db"), ("INBOX_MIGRATE", "off")];
    let mut program = silent(folder.path(), &variables).spawn().expect("the program");
    let pid = Pid::from_child(&program);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(program.stderr.take().expect("piped")));
    let said = tokio::task::spawn_blocking(move || {
        let found = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.contains("tables are missing"));
        kill_process(pid, Signal::TERM).expect("it runs");
        (found, lines.map_while(Result::ok).collect::<Vec<_>>())
    });
    let (found, rest) = tokio::time::timeout(Duration::from_secs(60), said)
        .await
        .expect("in time")
        .expect("read");
    assert_says(
        &found.expect("a warning"),
        &[" WARN ", "the start waits", "database=SQLite (DATABASE_URL)"],
    );
    let status = tokio::task::spawn_blocking(move || program.wait())
        .await
        .expect("no panic");
    assert!(status.expect("its status").success(), "{rest:?}");
}

/// What is wrong with the broker for good isn't hidden behind a database that is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g63_a_missing_folder_of_the_broker_is_seen_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = WorkerCommand::new(
        env!("CARGO_BIN_EXE_worker"),
        inbox_tests::process::Mode::Main,
        &format!("embedded:{}", folder.path().join("no/broker.db").display()),
        &SqliteFile::fresh().await.url(),
        "one-sqlite",
    )
    .env("INBOX_MIGRATE", "off")
    .start();
    let ended = worker.end().await;
    assert!(!ended.status.success(), "{ended:#?}");
    assert_says(&ended.log.join("\n"), &["no/broker.db"]);
}
