//! What is published on PostgreSQL, whatever a handler has set on its session, and behind a transaction pooler.

use std::time::Duration;

use inbox_runtime::{Inbox, Outcome, sqlx::postgres::PgConnectOptions};
use inbox_tests::{
    Order, PostgresDatabase, Step, TestBroker, TestDatabase, next, nothing_more, pool, servers::PgBouncer,
};

use crate::{World, shared, world_on};

async fn order(world: &World, id: &str) {
    let order = Order::new(format!("order-{id}"));
    world.broker.publish(order.to("order.created").id(id.to_owned())).await;
}

/// The outbox is written by the role, and in the schema, that the session was lent with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b25_what_a_handler_sets_on_its_session_does_not_keep_it_from_publishing() {
    let world = world_on(PostgresDatabase::fresh().await).await;
    let mut inbox = world
        .builder_of("inbox_tests::outbox_handlers", &["orders"])
        .build()
        .await
        .expect("an inbox");
    let settings = [
        "SET ROLE pg_read_all_data",
        "SET LOCAL ROLE pg_read_all_data",
        "SET search_path = pg_catalog",
        "SET LOCAL statement_timeout = '1ms'",
        "SET standard_conforming_strings = off",
        "SET bytea_output = escape",
    ];
    for (number, sql) in settings.into_iter().enumerate() {
        world.probe.script(move |_| Step::Exec(sql));
        order(&world, &format!("o{number}")).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{sql}");
        nothing_more(&mut inbox).await;
        assert_eq!(world.flaky.published().len(), number + 1, "{sql}");
    }
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_outbox").await, 0);
}

async fn inbox(world: &World) -> Inbox {
    let builder = world.builder_of("inbox_tests::outbox_handlers", &["orders", "invoices"]);
    builder
        .transaction_pooler()
        .lock_wait(Duration::from_secs(5))
        .build()
        .await
        .expect("an inbox")
}

/// Behind a pooler nothing can be set on a session: what is published after the handler has ended the transaction is undone with the
/// seal that fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b25_behind_a_transaction_pooler_messages_are_published_and_relayed_as_without() {
    let Some(server) = shared() else { return };
    let Some(pooler) = PgBouncer::before(server.port(), 2) else {
        return;
    };
    let database = PostgresDatabase::fresh().await;
    let options: PgConnectOptions = pooler.url(database.name()).parse().expect("a URL");
    let world = world_on(database.with_pool(pool(options.statement_cache_capacity(0), 8))).await;
    let mut inbox = inbox(&world).await;
    for number in 0..20 {
        order(&world, &format!("o{number}")).await;
    }
    for _ in 0..40 {
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
    for sql in ["ROLLBACK", "COMMIT", "ROLLBACK; BEGIN"] {
        world.probe.script(move |_| Step::Swallow(sql, Box::new(Step::Ok)));
        order(&world, sql).await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "{sql}");
        assert_eq!(
            world.database.number("SELECT count(*) FROM inbox_outbox").await,
            0,
            "{sql}"
        );
        assert_eq!(world.flaky.published().len(), 20, "{sql}");
    }
}
