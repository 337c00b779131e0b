//! The tables of the inbox at the start: made, looked for, or not ours.

use inbox_runtime::{Error, MigrateMode, Outcome, migrate};
use inbox_tests::{Step, TestBroker, TestDatabase, World, lean_suite, next};

lean_suite!(
    a_table_of_another_library_is_an_error_that_says_so,
    missing_tables_are_an_error_where_they_may_only_be_looked_for,
    the_rows_of_a_newer_version_are_tolerated,
    the_tables_of_an_earlier_version_are_brought_up_to_date,
    a_second_start_changes_nothing,
);

async fn error<B: TestBroker, D: TestDatabase>(world: &World<B, D>, mode: MigrateMode) -> String {
    match world.builder(&["billing"]).migrate(mode).build().await {
        Err(error @ Error::Migrate { .. }) => error.to_string(),
        other => panic!("not an error of the tables: {other:?}"),
    }
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

async fn a_table_of_another_library_is_an_error_that_says_so<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    // As nats-outbox has it.
    world
        .database
        .exec(
            "CREATE TABLE inbox_events (event_id VARCHAR(64) NOT NULL, consumer_group VARCHAR(255) NOT NULL, \
             PRIMARY KEY (event_id, consumer_group)); INSERT INTO inbox_events VALUES ('m1', 'billing')",
        )
        .await;
    world.publish("m1").await;
    for mode in [MigrateMode::Auto, MigrateMode::Check] {
        let text = error(&world, mode).await;
        assert_says(
            &text,
            &[
                "`inbox_events`",
                "not the inbox's",
                "event_id, consumer_group",
                "rename it",
            ],
        );
    }
    // Nothing was touched: not the table, not the broker.
    let rows = "SELECT count(*) FROM inbox_events WHERE event_id = 'm1'";
    assert_eq!(world.database.number(rows).await, 1);
    assert_eq!(world.broker.settled("billing", "order.created").await, None);
}

async fn missing_tables_are_an_error_where_they_may_only_be_looked_for<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let text = error(&world, MigrateMode::Check).await;
    assert_says(
        &text,
        &[
            "`inbox_events` is missing",
            "INBOX_MIGRATE=auto",
            "inbox_runtime::migrate",
        ],
    );
    assert!(
        world.database.try_exec("SELECT * FROM inbox_events").await.is_err(),
        "looking makes no table"
    );

    migrate(&world.database.pool()).await.expect("the tables");
    let builder = world.builder(&["billing"]).migrate(MigrateMode::Check);
    let mut inbox = builder.build().await.expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}

async fn the_rows_of_a_newer_version_are_tolerated<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    // A rolling upgrade: the newer version started first and migrated the tables.
    world
        .database
        .exec(
            "INSERT INTO _inbox_migrations (version, description, success, checksum, execution_time) \
             SELECT 9999, 'newer', success, checksum, execution_time FROM _inbox_migrations WHERE version = 1; \
             ALTER TABLE inbox_events ADD COLUMN newer INTEGER",
        )
        .await;
    world.publish("m1").await;
    for mode in [MigrateMode::Auto, MigrateMode::Check] {
        world
            .builder(&["billing"])
            .migrate(mode)
            .build()
            .await
            .expect("an inbox");
    }
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m1").await;
}

/// The tables as the first version had them, with a handled message, a failed one, and a dead letter that is to be replayed.
async fn first_version<D: TestDatabase>(database: &D) {
    let (made, payload, now) = match D::HANDLERS {
        "postgres" => (
            include_str!("../../../inbox-runtime/migrations/postgres/0001_inbox.sql"),
            "'{}'::bytea",
            "now()",
        ),
        _ => (
            include_str!("../../../inbox-runtime/migrations/sqlite/0001_inbox.sql"),
            "CAST('{}' AS BLOB)",
            "unixepoch() * 1000",
        ),
    };
    database
        .exec(
            "DROP TABLE inbox_events; DROP TABLE inbox_attempts; DROP TABLE inbox_dead_letters; DROP TABLE inbox_outbox; \
             DROP TABLE inbox_outbox_later; DROP TABLE inbox_outbox_parked",
        )
        .await;
    database.exec(made).await;
    let letter = format!(
        "INSERT INTO inbox_dead_letters (consumer_group, handler, position, subject, message_id, headers, payload, reason, \
         error, attempts, first_failed_at, replay_at) VALUES ('shipping', 'h', 'p', 's', 'id', {headers}, {payload}, \
         'permanent', 'e', 1, {now}, {now})",
        headers = payload.replace("{}", "[]"),
    );
    database
        .exec(&format!(
            "DELETE FROM _inbox_migrations WHERE version > 1; {letter}; {letter2}; DELETE FROM inbox_dead_letters WHERE \
             position = 'p2'; \
             INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('billing', 'm0', 0); \
             INSERT INTO inbox_attempts (consumer_group, handler, position, attempts, last_error) \
             VALUES ('shipping', 'h', 'p', 2, 'e')",
            letter2 = letter.replace("'p'", "'p2'"),
        ))
        .await;
}

async fn the_tables_of_an_earlier_version_are_brought_up_to_date<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    first_version(&world.database).await;
    let text = error(&world, MigrateMode::Check).await;
    assert_says(
        &text,
        &[
            "`inbox_attempts`",
            "earlier version",
            "lacks message_id",
            "INBOX_MIGRATE=auto",
        ],
    );
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    let rows = "SELECT count(*) FROM inbox_events";
    assert_eq!(world.database.number(rows).await, 2, "what was there stays");
    assert_eq!(world.attempts("shipping").await, 2);
    let letter = world.letter("shipping").await;
    assert_eq!((letter.id, letter.message_key.as_ref()), (1, None));
    assert!(letter.replay_requested_at.is_some());
    world.probe.script(|_| Step::Permanent("refused"));
    world.publish("m2").await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.letter("billing").await.id, 3, "a number is not given again");
    drop(inbox);
    world
        .builder(&["billing"])
        .migrate(MigrateMode::Check)
        .build()
        .await
        .expect("an inbox");
}

async fn a_second_start_changes_nothing<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    drop(inbox);
    world.publish("m1").await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    world.assert_done("billing", "m1").await;
}
