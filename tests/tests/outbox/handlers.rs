//! What a handler publishes by its `Outbox`.

use inbox_runtime::{Inbox, Message, Outcome};
use inbox_tests::{Order, Step, TestBroker, TestDatabase, World, embedded_suite, next, nothing_more};

embedded_suite!(
    b25_nothing_is_published_of_a_handler_that_fails,
    b25_a_handler_that_runs_again_publishes_the_same_ids,
    b25_the_headers_tell_where_a_message_comes_from,
    b25_an_outbox_that_outlives_its_handler_is_its_failure,
    b25_a_message_that_no_broker_takes_is_the_handlers_failure,
    b25_a_handler_that_ends_its_transaction_publishes_nothing,
    b25_a_handler_that_swallows_an_error_publishes_nothing,
);

/// An inbox with the handlers that publish.
pub(crate) async fn inbox<B: TestBroker, D: TestDatabase>(world: &World<B, D>, groups: &[&str]) -> Inbox {
    let builder = world.builder_of("inbox_tests::outbox_handlers", groups);
    builder.build().await.expect("an inbox")
}

/// Publishes an order of that many invoices.
pub(crate) async fn order<B: TestBroker, D: TestDatabase>(world: &World<B, D>, id: &str, invoices: u64) {
    let order = Order {
        order_id: format!("order-{id}"),
        amount: invoices,
    };
    world.broker.publish(order.to("order.created").id(id.to_owned())).await;
}

/// How many messages wait in the outbox.
pub(crate) async fn waiting<D: TestDatabase>(database: &D) -> i64 {
    database.number("SELECT count(*) FROM inbox_outbox").await
}

fn header(message: &Message, name: &str) -> String {
    let value = message.headers.get(name).map(String::from_utf8_lossy);
    value.unwrap_or_default().into_owned()
}

async fn b25_nothing_is_published_of_a_handler_that_fails<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("not now"),
        2 => Step::Panic("nor now"),
        _ => Step::Ok,
    });
    let mut inbox = inbox(&world, &["orders"]).await;
    order(&world, "o1", 2).await;
    for published in [0, 0] {
        assert_eq!(next(&mut inbox).await, Outcome::Failed);
        assert_eq!(waiting(&world.database).await, 0);
        assert_eq!(world.flaky.published().len(), published);
        world.lease_runs_out().await;
    }
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    nothing_more(&mut inbox).await;
    assert_eq!(world.flaky.published().len(), 2);
}

async fn b25_a_handler_that_runs_again_publishes_the_same_ids<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = inbox(&world, &["orders-again", "invoices"]).await;
    // Not claimed, so the handler runs for each copy.
    order(&world, "o1", 2).await;
    order(&world, "o1", 2).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.processed, report.duplicate), (4, 2), "{report}");
    let mut ids: Vec<_> = world
        .flaky
        .published()
        .iter()
        .map(|message| header(message, "message_id"))
        .collect();
    assert_eq!(ids.len(), 4);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 2);
}

async fn b25_the_headers_tell_where_a_message_comes_from<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = inbox(&world, &["orders"]).await;
    let message = Order::new("a")
        .to("order.created")
        .id("o1")
        .header("correlation_id", "checkout-7");
    world.broker.publish(message).await;
    order(&world, "o2", 1).await;
    inbox.run_until_idle().await.expect("the broker");
    nothing_more(&mut inbox).await;
    let published = world.flaky.published();
    let of = |name: &str| Vec::from_iter(published.iter().map(|message| header(message, name)));
    let mut causes = of("causation_id");
    causes.sort();
    assert_eq!(causes, ["o1", "o2"]);
    let mut correlations = of("correlation_id");
    correlations.sort();
    assert_eq!(correlations, ["checkout-7", "o2"]);
    assert_eq!(of("content-type"), ["application/json", "application/json"]);
    assert!(of("message_id").iter().all(|id| id.len() == 36), "{published:?}");
}

async fn b25_an_outbox_that_outlives_its_handler_is_its_failure<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = inbox(&world, &["escape"]).await;
    order(&world, "o1", 1).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    world.assert_untouched("escape", "o1").await;
    let error = world.letter("escape").await.error;
    assert!(error.contains("still in use after its end"), "{error}");
}

async fn b25_a_message_that_no_broker_takes_is_the_handlers_failure<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = inbox(&world, &["named"]).await;
    for (id, subject) in [("o1", "invoice.*"), ("o2", ""), ("o3", "a b")] {
        world
            .broker
            .publish(Order::new(subject).to("order.created").id(id))
            .await;
        assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
        world.assert_untouched("named", id).await;
    }
    assert_eq!(waiting(&world.database).await, 0);
    let letters = world.letters("named").await;
    assert!(letters[0].error.contains("invoice.*"), "{}", letters[0].error);
}

async fn b25_a_handler_that_ends_its_transaction_publishes_nothing<B: TestBroker, D: TestDatabase>() {
    for sql in ["COMMIT", "ROLLBACK", "ROLLBACK; BEGIN"] {
        let world = World::<B, D>::new().await;
        world.probe.script(move |_| Step::Swallow(sql, Box::new(Step::Ok)));
        let mut inbox = inbox(&world, &["orders"]).await;
        order(&world, "o1", 1).await;
        let outcome = next(&mut inbox).await;
        assert_ne!(outcome, Outcome::Processed, "{sql}");
        assert_eq!(waiting(&world.database).await, 0, "{sql}");
        assert_eq!(world.flaky.published().len(), 0, "{sql}");
        assert_eq!(world.database.inbox("orders", "o1").await, 0, "{sql}");
    }
}

async fn b25_a_handler_that_swallows_an_error_publishes_nothing<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 => Step::Swallow("SELECT * FROM nowhere", Box::new(Step::Fail("seen"))),
        _ => Step::Ok,
    });
    let mut inbox = inbox(&world, &["orders"]).await;
    order(&world, "o1", 1).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(waiting(&world.database).await, 0);
    world.lease_runs_out().await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    nothing_more(&mut inbox).await;
    assert_eq!(world.flaky.published().len(), 1);
}
