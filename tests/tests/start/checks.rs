//! Everything that keeps a program from starting is said at once, with the place that can mend it.

use inbox_runtime::{Embedded, Error, Inbox, InboxBuilder, Outcome, StartErrors};
use inbox_tests::{EmbeddedFile, SqliteFile, TestBroker, TestDatabase, World, next};

use super::handlers::{self, place};

type Here = World<EmbeddedFile, SqliteFile>;

/// An inbox of the handlers of this binary.
fn builder(world: &Here, groups: &[&str]) -> InboxBuilder {
    without_store(world, groups).store(world.database.pool())
}

fn without_store(world: &Here, groups: &[&str]) -> InboxBuilder {
    Inbox::builder()
        .broker(world.broker.connect())
        .groups(groups.iter().copied())
        .select(|meta| meta.name.starts_with("start::handlers::"))
}

async fn errors(builder: InboxBuilder) -> StartErrors {
    match builder.build().await {
        Err(Error::Start(errors)) => errors,
        other => panic!("not a start error: {other:?}"),
    }
}

/// Where `main` returns it this is what the program's user sees.
#[tokio::test]
async fn an_error_that_main_returns_can_be_read() {
    let world = Here::new().await;
    let nothing = Inbox::builder()
        .store(world.database.pool())
        .groups(["nobody", "nowhere"]);
    let error = nothing.build().await.expect_err("nothing to run on");
    let shown = format!("{error:?}");
    assert_eq!(shown, error.to_string());
    assert!(shown.lines().count() > 3, "{shown}");

    let broker = Embedded::file("/nowhere/at/all/broker.db");
    let error = builder(&world, &["apart"])
        .broker(broker)
        .build()
        .await
        .expect_err("no broker");
    let shown = format!("{error:?}");
    assert!(shown.starts_with(&error.to_string()), "{shown}");
    assert!(
        shown.contains("unable to open database file"),
        "the whole chain: {shown}"
    );
}

#[tokio::test]
async fn an_ack_wait_of_zero_is_refused() {
    let world = Here::new().await;
    let problem = problem(builder(&world, &["apart"]).ack_wait(std::time::Duration::ZERO)).await;
    assert!(problem.contains(".ack_wait("), "{problem}");
}

/// The one problem that there is.
async fn problem(builder: InboxBuilder) -> String {
    let errors = errors(builder).await;
    let problems: Vec<_> = errors.iter().collect();
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].to_owned()
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

fn at(line: u32) -> String {
    format!("tests/tests/start/handlers.rs:{line}")
}

#[tokio::test]
async fn f25_two_handlers_of_one_group_and_subject_are_refused_with_both_places() {
    let world = Here::new().await;
    let problem = problem(builder(&world, &["twins"])).await;
    assert_says(
        &problem,
        &[
            "group `twins`",
            "`start::handlers::one::create`",
            "`start::handlers::other::create`",
            &at(place::ONE),
            &at(place::OTHER),
        ],
    );
}

#[tokio::test]
async fn f25_two_handlers_in_different_crates_are_refused_too() {
    const NAMES: [&str; 2] = ["start::handlers::elsewhere", "inbox_tests::handlers::sqlite::shipping"];
    let world = Here::new().await;
    let both = Inbox::builder()
        .store(world.database.pool())
        .broker(world.broker.connect())
        .state(world.probe.clone())
        .groups(["shipping"])
        .select(|meta| NAMES.contains(&meta.name));
    let problem = problem(both).await;
    assert_says(
        &problem,
        &[
            NAMES[0],
            NAMES[1],
            "(tests/tests/start/handlers.rs:",
            "(tests/src/handlers.rs:",
        ],
    );
}

#[tokio::test]
async fn f26_overlapping_subjects_of_one_group_are_refused_with_both_patterns() {
    let world = Here::new().await;
    let overlap = problem(builder(&world, &["overlap"])).await;
    assert_says(&overlap, &["`orders.*`", "`orders.created`", "another group"]);
    let deep = problem(builder(&world, &["deep-overlap"])).await;
    assert_says(&deep, &["`a.>`", "`a.*.c`"]);
    // Subjects that can't meet, and other groups, may be what they are.
    let inbox = builder(&world, &["apart"]).build().await.expect("an inbox");
    assert_eq!(inbox.handlers().count(), 2);
}

#[tokio::test]
async fn f53_a_name_from_a_const_is_checked_by_the_rule_of_the_attribute() {
    let world = Here::new().await;
    let group = problem(builder(&world, &["a b"])).await;
    assert_says(&group, &["badly_named_group", "contains a space", "handlers.rs:"]);
    let subject = problem(builder(&world, &["bad-subject"])).await;
    assert_says(&subject, &["badly_named_subject", "an empty token", "handlers.rs:"]);

    let good = builder(&world, &[handlers::GOOD_GROUP]);
    let mut inbox = good.build().await.expect("an inbox");
    world
        .broker
        .publish(inbox_runtime::Message::new(handlers::GOOD_SUBJECT, "").id("m1"))
        .await;
    assert_eq!(next(&mut inbox).await, Outcome::Skipped);
}

#[tokio::test]
async fn nothing_selected_is_an_error() {
    let world = Here::new().await;
    let problem = problem(builder(&world, &["apart"]).select(|_| false)).await;
    assert_says(
        &problem,
        &["registered handlers is selected", "INBOX_GROUPS", "`.select(…)`"],
    );
}

#[tokio::test]
async fn an_unknown_group_is_an_error_that_lists_the_known_ones() {
    let world = Here::new().await;
    let problem = problem(builder(&world, &["apart", "biling"])).await;
    assert_says(&problem, &["`biling`", "billing", "shipping", "twins"]);
}

#[tokio::test]
async fn a_state_that_nobody_gave_is_an_error_with_the_handlers_place() {
    let world = Here::new().await;
    let missing = problem(builder(&world, &["stateful"])).await;
    assert_says(
        &missing,
        &[
            "`start::handlers::stateful`",
            &at(place::STATEFUL),
            "State<start::handlers::Missing>",
            ".state(…)",
        ],
    );
    let given = builder(&world, &["stateful"]).state(handlers::Missing);
    given.build().await.expect("an inbox");
}

#[tokio::test]
async fn b9_b24_the_runtime_opens_no_database_that_it_was_not_given() {
    let world = Here::new().await;
    let problem = problem(without_store(&world, &["apart"])).await;
    assert_says(
        &problem,
        &[
            "needs a SQLite database",
            "DATABASE_URL",
            "INBOX_SQLITE_URL",
            "sqlite://app.db",
            ".store(pool)",
            "handlers.rs:",
        ],
    );
}

#[tokio::test]
async fn a_handler_without_a_transaction_needs_a_database_for_its_dead_letters() {
    let world = Here::new().await;
    let problem = problem(without_store(&world, &["detached"])).await;
    assert_says(&problem, &["dead letters", "DATABASE_URL"]);
    let given = without_store(&world, &["detached"]).dead_letters(world.database.pool());
    given.build().await.expect("an inbox");
}

#[tokio::test]
async fn no_broker_is_an_error_that_shows_a_url() {
    let world = Here::new().await;
    let nothing = Inbox::builder().store(world.database.pool()).groups(["apart"]);
    assert_says(
        &problem(nothing).await,
        &["there is no broker", "INBOX_BROKER_URL", "embedded:broker.db"],
    );
}

#[tokio::test]
async fn a_broker_url_that_cannot_be_used_says_what_is_built_in() {
    let world = Here::new().await;
    let with = |url: &str| {
        let builder = Inbox::builder().store(world.database.pool()).groups(["apart"]);
        problem(builder.broker_url(url))
    };
    let unknown = with("pigeon://user:secret@host").await;
    assert_says(&unknown, &["`pigeon:`", "built in: embedded", "feature"]);
    assert!(!unknown.contains("secret"), "{unknown}");
    assert_says(&with("embedded:").await, &["names no file", "embedded:memory"]);
}

#[tokio::test]
async fn a_handler_that_the_program_expects_must_be_there() {
    let world = Here::new().await;
    let expecting = builder(&world, &["apart"])
        .expect("apart", "orders.created")
        .expect("apart", "orders.deleted");
    let problem = problem(expecting).await;
    assert_says(&problem, &["`apart`", "`orders.deleted`", "expects one"]);
}

#[tokio::test]
async fn every_problem_is_said_at_once_and_nothing_is_begun() {
    let world = Here::new().await;
    let builder =
        without_store(&world, &["twins", "overlap", "stateful", "a b", "nobody"]).expect("twins", "twin.deleted");
    let errors = errors(builder).await;
    let text = errors.to_string();
    assert_says(
        &text,
        &[
            "for 7 reasons",
            "`nobody`",
            "`twin.deleted`",
            "one::create",
            "`orders.*`",
            "State<",
            "contains a space",
            "needs a SQLite database",
        ],
    );
    assert_eq!(errors.iter().count(), 7, "{text}");
    assert_eq!(text.lines().count(), 8, "{text}");
    assert_eq!(world.broker.connect().consumers().await.expect("the broker"), []);
}

#[tokio::test]
async fn broker_and_database_in_one_file_are_refused() {
    let world = Here::new().await;
    // The same file by another name.
    let file = world.database.path();
    let folder = file.parent().expect("a folder");
    let other_name = folder
        .join("..")
        .join(folder.file_name().expect("a name"))
        .join("app.db");
    let builder = world.builder(&["billing"]).broker(Embedded::file(other_name));
    assert_says(&problem(builder).await, &["app.db", "a file of its own"]);
}
