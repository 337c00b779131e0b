//! Tables of the inbox that are not as they must be: each is a start error that says what is wanted and what was found.

use inbox_runtime::{
    Error, MigrateMode, migrate,
    sqlx::{AssertSqlSafe, Connection, raw_sql},
};
use inbox_tests::{TestBroker, TestDatabase, pool};

use crate::{World, world_on};

/// Why the inbox doesn't start, in both modes that look at the tables.
async fn refusal(world: &World) -> String {
    let mut texts = Vec::new();
    for mode in [MigrateMode::Auto, MigrateMode::Check] {
        match world.builder(&["billing"]).migrate(mode).build().await {
            Err(error @ Error::Migrate { .. }) => texts.push(error.to_string()),
            other => panic!("not an error of the tables: {other:?}"),
        }
    }
    assert_eq!(
        texts[0].lines().count(),
        texts[1].lines().count(),
        "one mode sees what the other doesn't: {texts:?}"
    );
    texts.remove(0)
}

/// A database with the inbox's tables, changed by these statements.
async fn changed(sql: &str) -> World {
    let world = World::new().await;
    migrate(&world.database.pool()).await.expect("the tables");
    world.database.exec(sql).await;
    world
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_types_collations_keys_and_persistence_are_checked() {
    let nocase = "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
    for (sql, parts) in [
        (
            "ALTER TABLE inbox_events DROP CONSTRAINT inbox_events_pkey",
            &[
                "`inbox_events`",
                "wanted PRIMARY KEY (consumer_group, message_id)",
                "none",
            ][..],
        ),
        (
            "ALTER TABLE inbox_events DROP CONSTRAINT inbox_events_pkey, ADD PRIMARY KEY (message_id)",
            &[
                "wanted PRIMARY KEY (consumer_group, message_id)",
                "`inbox_events_pkey` (message_id)",
                "exclude one another",
            ],
        ),
        (
            "ALTER TABLE inbox_events DROP CONSTRAINT inbox_events_pkey, \
             ADD PRIMARY KEY (consumer_group, message_id) DEFERRABLE INITIALLY DEFERRED",
            &["wanted PRIMARY KEY (consumer_group, message_id)", "deferred"],
        ),
        (
            "ALTER TABLE inbox_events DROP CONSTRAINT inbox_events_pkey; \
             CREATE UNIQUE INDEX part ON inbox_events (consumer_group, message_id) WHERE fingerprint > 0",
            &["wanted PRIMARY KEY (consumer_group, message_id)", "partial"],
        ),
        (
            "ALTER TABLE inbox_events ALTER message_id TYPE uuid USING message_id::uuid",
            &["`message_id`: wanted text; there is uuid"],
        ),
        (
            "ALTER TABLE inbox_events ALTER message_id TYPE char(40)",
            &["`message_id`: wanted text; there is character(40)"],
        ),
        (
            "ALTER TABLE inbox_events ALTER message_id TYPE varchar(36)",
            &["`message_id`: wanted text; there is character varying(36)"],
        ),
        (
            "ALTER TABLE inbox_events ALTER fingerprint TYPE integer",
            &["`fingerprint`: wanted bigint; there is integer"],
        ),
        (
            "ALTER TABLE inbox_attempts ALTER attempts TYPE numeric",
            &["`inbox_attempts`", "wanted bigint; there is numeric"],
        ),
        (
            "ALTER TABLE inbox_dead_letters ALTER headers TYPE text USING ''",
            &["`inbox_dead_letters`", "`headers`: wanted bytea; there is text"],
        ),
        (
            "ALTER TABLE inbox_dead_letters ALTER dead_at TYPE timestamp",
            &["`dead_at`: wanted timestamp with time zone"],
        ),
        (nocase, &[]),
        (
            "ALTER TABLE inbox_events SET UNLOGGED",
            &["`inbox_events`", "UNLOGGED", "crash of the server"],
        ),
        (
            "ALTER TABLE inbox_attempts SET UNLOGGED",
            &["`inbox_attempts`", "UNLOGGED"],
        ),
        (
            "ALTER TABLE inbox_events RENAME TO kept; CREATE VIEW inbox_events AS SELECT * FROM kept",
            &["wanted a table; there is a view"],
        ),
        (
            "ALTER TABLE inbox_events ALTER processed_at DROP DEFAULT",
            &["`processed_at`: wanted a default; there is none"],
        ),
        (
            "ALTER TABLE inbox_dead_letters ALTER id DROP IDENTITY",
            &["`id`: wanted a default"],
        ),
        (
            "ALTER TABLE inbox_attempts ALTER last_error SET NOT NULL",
            &["`last_error`: wanted a column that may be null; there is NOT NULL"],
        ),
        (
            "ALTER TABLE inbox_events ALTER fingerprint DROP NOT NULL",
            &["`fingerprint`: wanted NOT NULL"],
        ),
        (
            "ALTER TABLE inbox_events ADD tenant text NOT NULL",
            &["`tenant`", "can't fill", "text NOT NULL"],
        ),
        (
            "CREATE UNIQUE INDEX once ON inbox_events (message_id)",
            &["`once` (message_id)", "exclude one another", "drop it"],
        ),
        (
            "CREATE UNIQUE INDEX once ON inbox_events (lower(message_id), consumer_group)",
            &["`once`", "lower(message_id)", "drop it"],
        ),
        (
            "CREATE UNIQUE INDEX once ON inbox_dead_letters (message_id)",
            &["`inbox_dead_letters`", "`once` (message_id)"],
        ),
        (
            "CREATE RULE nothing AS ON INSERT TO inbox_events DO INSTEAD NOTHING",
            &["`nothing`", "rule", "drop it"],
        ),
        (
            "DROP TABLE inbox_attempts; ALTER TABLE inbox_events SET UNLOGGED",
            &["for 2 reasons", "`inbox_attempts` is missing", "UNLOGGED"],
        ),
    ] {
        let world = changed(sql).await;
        if parts.is_empty() {
            // Case doesn't count in this one: "A" would be acknowledged as a duplicate of "a".
            let sql = "ALTER TABLE inbox_events ALTER message_id TYPE text COLLATE nocase";
            world.database.exec(sql).await;
            assert_says(
                &refusal(&world).await,
                &["`message_id`", "compares byte by byte", "nocase", "collated by"],
            );
            continue;
        }
        assert_says(&refusal(&world).await, parts);
        assert_eq!(
            world.broker.settled("billing", "order.created").await,
            None,
            "it was begun"
        );
    }
}

/// A table that the inbox didn't make is judged in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_tables_that_were_made_by_hand_are_checked() {
    let world = World::new().await;
    let made = "CREATE TABLE inbox_events (consumer_group text NOT NULL, message_id uuid NOT NULL, fingerprint bigint NOT NULL, \
                processed_at timestamptz NOT NULL DEFAULT now())";
    world.database.exec(made).await;
    let error = world
        .builder(&["billing"])
        .build()
        .await
        .expect_err("refused")
        .to_string();
    assert_says(
        &error,
        &["`message_id`: wanted text; there is uuid", "wanted PRIMARY KEY", "none"],
    );

    // As the migrations have it, partitioned and in another order: taken where it is only looked at.
    let world = changed("DROP TABLE _inbox_migrations").await;
    world
        .database
        .exec(
            "DROP TABLE inbox_events; CREATE TABLE inbox_events (message_id varchar NOT NULL, consumer_group varchar NOT NULL, \
             fingerprint bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(), note text, \
             PRIMARY KEY (message_id, consumer_group)) PARTITION BY HASH (message_id); \
             CREATE TABLE part PARTITION OF inbox_events FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        )
        .await;
    let error = world
        .builder(&["billing"])
        .build()
        .await
        .expect_err("refused")
        .to_string();
    assert_says(&error, &["_inbox_migrations", "INBOX_MIGRATE=check"]);
    world.publish("m1").await;
    let checked = world.builder(&["billing"]).migrate(MigrateMode::Check).build().await;
    let outcome = inbox_tests::next(&mut checked.expect("an inbox")).await;
    assert_eq!(outcome, inbox_runtime::Outcome::Processed);
}

/// A role that may do what these statements grant it, and may connect.
async fn role(world: &World, name: &str, grants: &str) -> World {
    let mut stranger = world.database.stranger().await;
    let sql = format!(
        "DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; {}",
        grants.replace("$role", name)
    );
    raw_sql(AssertSqlSafe(sql))
        .execute(&mut stranger)
        .await
        .expect("a role");
    stranger.close().await.expect("closed");
    let own = pool(world.database.options().username(name), 10);
    world_on(world.database.with_pool(own)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_rights_are_checked() {
    let all = "GRANT SELECT, INSERT ON inbox_events TO $role; GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_attempts, \
               inbox_dead_letters, inbox_outbox, inbox_outbox_later, inbox_outbox_parked TO $role; GRANT SELECT ON _inbox_migrations TO $role; GRANT INSERT ON effects TO $role;";
    for (name, sql, parts) in [
        (
            "inbox_no_attempts",
            "REVOKE ALL ON inbox_attempts FROM $role",
            &["`inbox_attempts`", "lacks SELECT, INSERT, UPDATE, DELETE", "GRANT"][..],
        ),
        (
            "inbox_no_delete",
            "REVOKE DELETE ON inbox_dead_letters FROM $role",
            &["`inbox_dead_letters`", "lacks DELETE"],
        ),
        (
            "inbox_no_insert",
            "REVOKE INSERT ON inbox_events FROM $role",
            &["`inbox_events`", "lacks INSERT"],
        ),
        (
            "inbox_secured",
            "ALTER TABLE inbox_events ENABLE ROW LEVEL SECURITY",
            &["`inbox_events`", "row security"],
        ),
        (
            "inbox_no_sequence",
            "ALTER TABLE inbox_dead_letters ALTER id DROP IDENTITY; CREATE SEQUENCE numbers OWNED BY inbox_dead_letters.id; \
             ALTER TABLE inbox_dead_letters ALTER id SET DEFAULT nextval('numbers')",
            &["`inbox_dead_letters`", "sequence `numbers`", "USAGE"],
        ),
        (
            "inbox_no_schema",
            "REVOKE USAGE ON SCHEMA public FROM PUBLIC",
            &["search_path names no schema"],
        ),
    ] {
        let world = changed("SELECT 1").await;
        let world = role(&world, name, &format!("{all} {sql}")).await;
        assert_says(&refusal(&world).await, parts);
    }
    let world = changed("SELECT 1").await;
    let world = role(&world, "inbox_enough", all).await;
    for mode in [MigrateMode::Auto, MigrateMode::Check] {
        world.publish(&format!("{mode:?}")).await;
        let inbox = world.builder(&["billing"]).migrate(mode).build().await;
        let outcome = inbox_tests::next(&mut inbox.expect("an inbox")).await;
        assert_eq!(outcome, inbox_runtime::Outcome::Processed);
    }
}

/// Such a role is told what to do where it is to make the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_a_role_that_may_not_make_the_tables_is_told_so() {
    let world = role(
        &World::new().await,
        "inbox_maker",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    .await;
    let error = world.builder(&["billing"]).build().await.expect_err("refused");
    let text = format!("{error:?}");
    assert_says(
        &text,
        &[
            "can't be made",
            "permission denied for schema public",
            "INBOX_MIGRATE=check",
        ],
    );
}

/// A trigger that swallows rows makes every message a duplicate. It is detected by the row that is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_a_trigger_that_swallows_rows_is_detected() {
    let swallow = "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
                   CREATE TRIGGER swallow BEFORE INSERT ON inbox_events FOR EACH ROW EXECUTE FUNCTION swallow()";
    let world = changed(swallow).await;
    world.publish("m1").await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("it waits");
    let health = inbox.health();
    assert!(!health.ready, "{health:?}");
    assert_says(&health.reasons.join("; "), &["inserts nothing", "triggers"]);
    world.database.exec("DROP TRIGGER swallow ON inbox_events").await;
    inbox_tests::eventually("m1 is settled", async || world.settled("billing").await).await;
    inbox.stop();
    inbox.join().await.expect("stopped");
    world.assert_done("billing", "m1").await;
}

/// What a newer version or an operator may add without harm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g44_what_does_no_harm_is_taken() {
    let world = changed(
        "ALTER TABLE inbox_events ADD note text, ADD shard int NOT NULL DEFAULT 0; \
         CREATE INDEX by_time ON inbox_events (processed_at); \
         CREATE UNIQUE INDEX wider ON inbox_events (message_id, consumer_group, processed_at); \
         CREATE UNIQUE INDEX widest ON inbox_dead_letters (consumer_group, handler, position, coalesce(message_id, ''), \
         fingerprint, reason); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TRIGGER note BEFORE INSERT ON inbox_events FOR EACH ROW EXECUTE FUNCTION note(); \
         ALTER TABLE inbox_events ADD CONSTRAINT short CHECK (length(message_id) < 600)",
    )
    .await;
    for mode in [MigrateMode::Auto, MigrateMode::Check] {
        world.publish(&format!("{mode:?}")).await;
        let inbox = world.builder(&["billing"]).migrate(mode).build().await;
        let outcome = inbox_tests::next(&mut inbox.expect("an inbox")).await;
        assert_eq!(outcome, inbox_runtime::Outcome::Processed);
    }
}
