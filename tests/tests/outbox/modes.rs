//! Programs that only write, only relay, or do neither.

use inbox_runtime::{Inbox, OutboxMode};
use inbox_tests::{Order, TestBroker, TestDatabase, World, embedded_suite, eventually};

use super::handlers::{order, waiting};

embedded_suite!(
    b25_one_program_writes_and_another_relays,
    b25_without_an_outbox_a_handler_that_publishes_does_not_start,
    b25_nobody_relays_is_said_by_whoever_writes,
    b25_a_program_that_relays_needs_a_database,
);

async fn b25_one_program_writes_and_another_relays<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let writer = world
        .builder_of("inbox_tests::outbox_handlers", &["orders"])
        .outbox(OutboxMode::Write);
    let writer = writer.spawn().await.expect("an inbox");
    order(&world, "o1", 3).await;
    eventually("it is handled", async || world.settled("orders").await).await;
    assert_eq!(waiting(&world.database).await, 3);
    let relay = Inbox::builder()
        .store(world.database.pool())
        .broker(world.flaky.clone())
        .groups(Vec::<String>::new())
        .outbox(OutboxMode::Relay);
    let relay = relay.spawn().await.expect("a relay");
    eventually("all are published", async || world.flaky.published().len() == 3).await;
    eventually("the outbox is empty", async || waiting(&world.database).await == 0).await;
    assert!(relay.health().ready, "{:?}", relay.health());
    for inbox in [writer, relay] {
        inbox.stop();
        inbox.join().await.expect("it ends well");
    }
}

async fn b25_without_an_outbox_a_handler_that_publishes_does_not_start<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let builder = world.builder_of("inbox_tests::outbox_handlers", &["orders", "invoices"]);
    let error = builder
        .outbox(OutboxMode::Off)
        .build()
        .await
        .expect_err("a start error")
        .to_string();
    assert!(error.contains("orders") && error.contains("INBOX_OUTBOX"), "{error}");
    assert!(!error.contains("invoices"), "{error}");
}

async fn b25_nobody_relays_is_said_by_whoever_writes<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let builder = world.builder_of("inbox_tests::outbox_handlers", &["orders"]);
    let inbox = builder
        .outbox(OutboxMode::Write)
        .outbox_max_age(std::time::Duration::from_millis(10))
        .spawn()
        .await
        .expect("an inbox");
    world.broker.publish(Order::new("a").to("order.created").id("o1")).await;
    eventually("health says so", async || {
        inbox
            .health()
            .warnings
            .iter()
            .any(|warning| warning.contains("nobody relays"))
    })
    .await;
    assert!(inbox.health().ready);
    inbox.stop();
    inbox.join().await.expect("it ends well");
}

async fn b25_a_program_that_relays_needs_a_database<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let relay = Inbox::builder()
        .broker(world.flaky.clone())
        .groups(Vec::<String>::new())
        .outbox(OutboxMode::Relay);
    let error = relay.build().await.expect_err("a start error").to_string();
    assert!(error.contains("no database whose outbox could be relayed"), "{error}");
}
