//! What PostgreSQL alone can do to a transaction, a session or a program, and how it shows.

mod claims;
mod commit;
mod commit_veto;
mod errors;
mod failures_of_one_message;
mod handlers;
mod kill_campaign;
mod outages;
mod outbox;
mod pooler;
mod prefetched_claims;
mod seal;
mod session_state;
mod sessions;
mod start;
mod table_shapes;
mod tls;
mod unavailable_server;

use inbox_runtime::{Outcome, sqlx::PgPool};
use inbox_tests::{
    EmbeddedMemory, Flaky, PostgresDatabase, Probe, TestBroker, TestDatabase,
    servers::postgres::{Postgres, Shared},
};

type World = inbox_tests::World<EmbeddedMemory, PostgresDatabase>;

/// A world on that database.
async fn world_on(database: PostgresDatabase) -> World {
    let broker = EmbeddedMemory::fresh().await;
    World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database,
        probe: Probe::default(),
    }
}

/// A world whose inbox has a pool of its own.
async fn world_with(make: impl FnOnce(&PostgresDatabase) -> PgPool) -> World {
    let database = PostgresDatabase::fresh().await;
    let pool = make(&database);
    world_on(database.with_pool(pool)).await
}

/// The shared server, unless it is somebody else's, to which no proxy leads.
fn shared() -> Option<&'static Postgres> {
    match Shared::get() {
        Shared::Own(postgres) => Some(postgres),
        Shared::Given(_) => {
            println!("skipped: DATABASE_URL names a server that isn't ours; unset it");
            None
        }
    }
}

/// Publishes `m1` to `m<count>`.
async fn publish(world: &World, count: usize) {
    for number in 1..=count {
        world.publish(&format!("m{number}")).await;
    }
}

/// Asserts that `m1` to `m<count>` are done, each once, and nothing besides.
async fn assert_all_done(world: &World, group: &str, count: i64) {
    world.assert_each_done_once(count).await;
    assert_eq!(world.attempts(group).await, 0, "attempts of {group}");
}

/// How many of the inbox's sessions are in that state, by `pg_stat_activity`; `_` and `%` are wildcards.
async fn sessions(world: &World, state: &str) -> i64 {
    world
        .database
        .number(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
             AND state LIKE '{state}'"
        ))
        .await
}

/// The error of the only dead letter.
async fn letter(world: &World) -> String {
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_dead_letters").await,
        1
    );
    world
        .database
        .text("SELECT reason || ': ' || error FROM inbox_dead_letters")
        .await
        .expect("a text")
}

/// Handles messages until the outcome is another one than `deferred` or `locked`.
async fn settle(inbox: &mut inbox_runtime::Inbox) -> Outcome {
    for _ in 0..20 {
        let outcome = inbox_tests::next(inbox).await;
        if !matches!(outcome, Outcome::Deferred | Outcome::Locked) {
            return outcome;
        }
    }
    panic!("never settled");
}
