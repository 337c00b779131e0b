//! A broker that refuses, waits or is gone, and transactions that commit late.

use inbox_runtime::{BrokerError, InboxHandle, Message};
use inbox_tests::{Order, TestBroker, TestDatabase, World, embedded_suite, eventually};

use super::handlers::{order, waiting};

embedded_suite!(
    b25_a_message_that_the_broker_refuses_is_parked_and_the_next_ones_go_on,
    b25_a_subject_that_the_broker_does_not_take_now_waits_alone,
    b25_an_outage_of_the_broker_parks_nothing,
    b25_a_message_that_was_committed_late_is_not_skipped,
    b25_a_full_outbox_stops_the_handlers_that_publish,
);

fn refused() -> BrokerError {
    BrokerError::refused("it is too large", "the broker's words")
}

fn not_now() -> BrokerError {
    BrokerError::not_now("no stream holds it", "the broker's words")
}

fn gone() -> BrokerError {
    BrokerError::unavailable("no answer", "the broker's words")
}

/// An inbox that relays, with the handlers of these groups.
async fn spawn<B: TestBroker, D: TestDatabase>(world: &World<B, D>, groups: &[&str]) -> InboxHandle {
    let builder = world.builder_of("inbox_tests::outbox_handlers", groups);
    builder.spawn().await.expect("an inbox")
}

async fn stop(inbox: InboxHandle) {
    inbox.stop();
    inbox.join().await.expect("it ends well");
}

/// Publishes messages in one transaction.
async fn publish<D: TestDatabase>(database: &D, messages: impl IntoIterator<Item = Message>) {
    let mut tx = database.begin().await;
    for message in messages {
        inbox_runtime::publish(&mut *tx, message).await.expect("published");
    }
    D::commit(tx).await;
}

fn to(subject: &str, number: u64) -> Message {
    let order = Order {
        order_id: "order-1".to_owned(),
        amount: number,
    };
    order.to(subject).key("order-1")
}

fn subjects(published: &[Message]) -> Vec<&str> {
    published.iter().map(|message| message.subject.as_str()).collect()
}

async fn b25_a_message_that_the_broker_refuses_is_parked_and_the_next_ones_go_on<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let large = Order::new("large").to("invoice.created").key("order-1");
    let is_large = large.payload.clone();
    world
        .flaky
        .answer(move |message| (message.payload == is_large).then(refused));
    let inbox = spawn(&world, &["invoices"]).await;
    publish(
        &world.database,
        [to("invoice.created", 1), large.id("i2"), to("invoice.created", 3)],
    )
    .await;
    eventually("the others are published", async || world.flaky.published().len() == 2).await;
    eventually("it is parked", async || {
        world.database.number("SELECT count(*) FROM inbox_outbox_parked").await == 1
    })
    .await;
    assert_eq!(waiting(&world.database).await, 0);
    let outbox = inbox_runtime::outbox(&world.database.pool());
    let parked = outbox.parked(0, 10).await.expect("parked");
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0].message_id, "i2");
    assert!(parked[0].error.contains("it is too large"), "{}", parked[0].error);
    eventually("health says so", async || {
        inbox
            .health()
            .warnings
            .iter()
            .any(|warning| warning.contains("1 parked message"))
    })
    .await;

    // The broker takes it now.
    world.flaky.answer(|_| None);
    assert!(outbox.replay(parked[0].id).await.expect("replayed"));
    assert!(!outbox.replay(parked[0].id).await.expect("gone"));
    eventually("it is published", async || world.flaky.published().len() == 3).await;
    eventually("the outbox is empty", async || waiting(&world.database).await == 0).await;
    stop(inbox).await;
    assert_eq!(outbox.parked(0, 10).await.expect("parked"), []);
}

async fn b25_a_subject_that_the_broker_does_not_take_now_waits_alone<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.flaky.answer(|message| (message.subject == "waits").then(not_now));
    let inbox = spawn(&world, &["invoices"]).await;
    let messages = (0..20).map(|number| to(if number % 2 == 0 { "waits" } else { "goes" }, number));
    publish(&world.database, messages).await;
    eventually("the others are published", async || world.flaky.published().len() == 10).await;
    eventually("health names it", async || {
        let warnings = inbox.health().warnings;
        warnings
            .iter()
            .any(|warning| warning.contains("`waits`") && warning.contains("no stream holds it"))
    })
    .await;
    // Those behind it go on.
    publish(&world.database, [to("goes", 20)]).await;
    eventually("the next is published", async || world.flaky.published().len() == 11).await;
    assert!(
        subjects(&world.flaky.published())
            .iter()
            .all(|subject| *subject == "goes")
    );
    eventually("the others wait", async || waiting(&world.database).await == 10).await;
    world.flaky.answer(|_| None);
    eventually("all are published", async || world.flaky.published().len() == 21).await;
    eventually("health is silent", async || inbox.health().warnings.is_empty()).await;
    stop(inbox).await;
    let published = world.flaky.published();
    let amounts: Vec<u64> = published
        .iter()
        .filter(|message| message.subject == "waits")
        .map(amount)
        .collect();
    assert_eq!(amounts, Vec::from_iter((0..20).step_by(2)), "in their order");
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_outbox_parked").await,
        0
    );
}

fn amount(message: &Message) -> u64 {
    let payload = message.payload.as_deref().unwrap_or_default();
    serde_json::from_slice::<Order>(payload).expect("an order").amount
}

async fn b25_an_outage_of_the_broker_parks_nothing<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.flaky.answer(|_| Some(gone()));
    let inbox = spawn(&world, &["orders"]).await;
    order(&world, "o1", 5).await;
    eventually("health says so", async || {
        inbox
            .health()
            .warnings
            .iter()
            .any(|warning| warning.contains("can't be relayed now"))
    })
    .await;
    // The handler goes on.
    order(&world, "o2", 5).await;
    eventually("both are handled", async || world.settled("orders").await).await;
    eventually("the others wait", async || waiting(&world.database).await == 10).await;
    world.flaky.answer(|_| None);
    eventually("all are published", async || world.flaky.published().len() >= 10).await;
    eventually("the outbox is empty", async || waiting(&world.database).await == 0).await;
    stop(inbox).await;
    assert_eq!(
        world.database.number("SELECT count(*) FROM inbox_outbox_parked").await,
        0
    );
}

async fn b25_a_message_that_was_committed_late_is_not_skipped<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let inbox = spawn(&world, &["invoices"]).await;
    // SQLite has one writer, so nothing can be committed late there but by this order.
    let mut late = world.database.begin().await;
    inbox_runtime::publish(&mut *late, to("late", 1))
        .await
        .expect("published");
    if D::HANDLERS == "postgres" {
        publish(&world.database, (2..200).map(|number| to("late", number))).await;
        eventually("the others are published", async || {
            world.flaky.published().len() == 198
        })
        .await;
    }
    D::commit(late).await;
    eventually("it is published too", async || {
        world.flaky.published().iter().any(|message| amount(message) == 1)
    })
    .await;
    eventually("the outbox is empty", async || waiting(&world.database).await == 0).await;
    stop(inbox).await;
}

async fn b25_a_full_outbox_stops_the_handlers_that_publish<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.flaky.answer(|_| Some(gone()));
    let builder = world.builder_of("inbox_tests::outbox_handlers", &["orders", "invoices"]);
    let inbox = builder.outbox_max_pending(10).spawn().await.expect("an inbox");
    order(&world, "o1", 11).await;
    eventually("health says so", async || {
        inbox
            .health()
            .warnings
            .iter()
            .any(|warning| warning.contains("more than 10 messages"))
    })
    .await;
    // A pull that had begun before may still return some of them.
    for number in 0..100 {
        order(&world, &format!("late-{number}"), 1).await;
    }
    // The handler that doesn't publish goes on.
    world
        .broker
        .publish(Order::new("x").to("invoice.created").id("i1"))
        .await;
    eventually("it goes on", async || world.probe.runs("invoices", "i1") == 1).await;
    let handled = world.probe.total();
    assert!(handled < 60, "{handled} of 102");
    world.flaky.answer(|_| None);
    eventually("all is handled", async || world.settled("orders").await).await;
    stop(inbox).await;
}
