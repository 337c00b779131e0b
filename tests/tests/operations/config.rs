//! Settings from code, environment and file, and a prefix before every subject.

use std::path::PathBuf;

use inbox_runtime::{Error, Inbox, InboxBuilder, Outcome};
use inbox_tests::{
    Settled, Step, TestBroker, TestDatabase, World, embedded_suite, next, nothing_more,
    process::{Mode, WorkerCommand},
};
use tempfile::TempDir;

embedded_suite!(
    a_handler_works_as_the_file_has_it,
    code_goes_before_the_file,
    only_messages_behind_the_prefix_are_handled,
    a_wildcard_stands_behind_the_prefix,
    a_prefix_that_cannot_be_one_is_a_start_error,
    the_problems_of_the_file_are_start_errors_among_others,
    a_url_that_cannot_be_used_is_not_shown,
);

mod processes {
    use super::{everything_can_come_from_the_file, the_environment_goes_before_the_file};

    inbox_tests::process_suite!(everything_can_come_from_the_file, the_environment_goes_before_the_file);
}

/// A file with settings, in a folder that goes with it.
fn file(text: &str) -> (PathBuf, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("inbox.toml");
    std::fs::write(&path, text).expect("written");
    (path, folder)
}

async fn problems(builder: InboxBuilder) -> Vec<String> {
    match builder.build().await {
        Err(Error::Start(errors)) => errors.iter().map(str::to_owned).collect(),
        other => panic!("not a start error: {other:?}"),
    }
}

async fn a_handler_works_as_the_file_has_it<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::Fail("always"));
    world.publish("m1").await;
    let name = format!("inbox_tests::handlers::{}::billing", D::HANDLERS);
    let (path, _folder) = file(&format!(
        "[handlers.billing]\nmax_attempts = 9\ntimeout = \"7s\"\n[handlers.\"{name}\"]\nmax_attempts = 1\nconcurrency = 2"
    ));
    let mut inbox = world
        .builder(&["billing", "shipping"])
        .config_file(path)
        .build()
        .await
        .expect("an inbox");
    let shown: Vec<_> = inbox
        .handlers()
        .map(|meta| (meta.group, meta.max_attempts, meta.timeout.as_secs(), meta.concurrency))
        .collect();
    assert_eq!(shown, [("billing", Some(1), 7, 2), ("shipping", Some(3), 300, 1)]);

    while world.letters("billing").await.is_empty() {
        next(&mut inbox).await;
    }
    let letter = world.letter("billing").await;
    assert_eq!((letter.attempts, world.probe.runs("billing", "m1")), (1, 1));
}

async fn code_goes_before_the_file<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (path, _folder) = file("groups = [\"shipping\"]\nsubject_prefix = \"staging\"\nbroker_url = \"embedded:\"");
    let inbox = world
        .builder(&["billing"])
        .subject_prefix("test")
        .config_file(path)
        .build()
        .await
        .expect("an inbox");
    assert_eq!(inbox.handlers().map(|meta| meta.group).collect::<Vec<_>>(), ["billing"]);
    assert_eq!(
        world.broker.settled("billing", "test.order.created").await,
        Some(Settled::ALL)
    );
    assert_eq!(world.broker.settled("billing", "staging.order.created").await, None);
}

async fn only_messages_behind_the_prefix_are_handled<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world
        .builder(&["billing"])
        .subject_prefix("eu.staging")
        .build()
        .await
        .expect("an inbox");
    world.publish_to("order.created", "other").await;
    world.publish_to("eu.staging.order.created", "ours").await;
    let broken = inbox_runtime::Message::new("eu.staging.order.created", "no JSON").id("broken");
    world.broker.publish(broken).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    nothing_more(&mut inbox).await;
    world.assert_done("billing", "ours").await;
    world.assert_untouched("billing", "other").await;
    assert_eq!(world.letter("billing").await.subject, "eu.staging.order.created");
}

async fn a_wildcard_stands_behind_the_prefix<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = world
        .builder(&["audit"])
        .subject_prefix("staging")
        .build()
        .await
        .expect("an inbox");
    world.publish_to("live.order.created", "other").await;
    world.publish_to("staging.order.created", "ours").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    nothing_more(&mut inbox).await;
    world.assert_done("audit", "ours").await;
}

async fn a_prefix_that_cannot_be_one_is_a_start_error<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    for (prefix, part) in [
        ("staging.", "leave it out"),
        ("*", "wildcard"),
        ("a b", "a space"),
        ("", "is empty"),
    ] {
        let found = problems(world.builder(&["billing"]).subject_prefix(prefix)).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(".subject_prefix(") && found[0].contains(part),
            "{found:?}"
        );
    }
    // Good by itself, but not before the handler's subject.
    let found = problems(world.builder(&["billing"]).subject_prefix("a".repeat(240))).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("::billing`") && found[0].contains("at most 249"),
        "{found:?}"
    );
}

async fn the_problems_of_the_file_are_start_errors_among_others<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (path, _folder) = file("lock_wiat = \"1s\"\n[handlers.biling]\nconcurrency = 2000");
    let place = path.display().to_string();
    let found = problems(world.builder(&["billing", "nobody"]).config_file(path)).await;
    let expected = [
        (format!("{place}:1: "), "the nearest is `lock_wait`"),
        (format!("{place}:2: "), "the nearest is [handlers.\"billing\"]"),
        (format!("{place}:3: "), "write 1 to 1024"),
        (String::new(), "`nobody`"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (place, part) in expected {
        assert!(
            found.iter().any(|one| one.starts_with(&place) && one.contains(part)),
            "no {part} in {found:#?}"
        );
    }
}

async fn a_url_that_cannot_be_used_is_not_shown<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let scheme = D::HANDLERS;
    let (path, _folder) = file(&format!(
        "\ndatabase_url = \"{scheme}://user:hunter2@nowhere:port/app?mode=maybe\""
    ));
    let builder = Inbox::builder()
        .broker(world.broker.connect())
        .state(world.probe.clone())
        .groups(["billing"])
        .select(|meta| meta.name == format!("inbox_tests::handlers::{}::billing", D::HANDLERS))
        .config_file(path);
    let error = builder.build().await.expect_err("no database");
    let shown = format!("{error:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("inbox.toml:2"), "{shown}");
}

/// A worker that has the environment of a test and no settings in it.
fn worker<D: TestDatabase>(config: &std::path::Path, group: &str) -> WorkerCommand {
    WorkerCommand::new(env!("CARGO_BIN_EXE_worker"), Mode::Idle, "", "", group)
        .env("INBOX_TEST_HANDLERS", D::HANDLERS)
        .env("INBOX_CONFIG", &config.display().to_string())
}

fn whole_file<B: TestBroker, D: TestDatabase>(world: &World<B, D>) -> (PathBuf, TempDir) {
    let broker = world.broker.url().expect("a broker that another process can reach");
    let database = world.database.url();
    file(&format!(
        "broker_url = \"{broker}\"\ndatabase_url = \"{database}\"\ngroups = [\"shipping\"]"
    ))
}

async fn everything_can_come_from_the_file<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let (path, _folder) = whole_file(&world);
    let ended = worker::<D>(&path, "").start().end().await;
    assert!(ended.status.success(), "{ended:#?}");
    assert_eq!((ended.all_runs(), ended.runs("shipping", "m1")), (1, 1), "{ended:#?}");
    world.assert_done("shipping", "m1").await;
}

async fn the_environment_goes_before_the_file<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let (path, _folder) = whole_file(&world);
    let ended = worker::<D>(&path, "billing").start().end().await;
    assert!(ended.status.success(), "{ended:#?}");
    assert_eq!((ended.all_runs(), ended.runs("billing", "m1")), (1, 1), "{ended:#?}");
}
