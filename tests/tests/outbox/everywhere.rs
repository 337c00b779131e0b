//! What is the same on every broker and database: what is published is handled once.

use inbox_runtime::Outcome;
use inbox_tests::{Order, TestBroker, TestDatabase, World, next, nothing_more, suite};

use super::{
    by_hand::invoice,
    handlers::{inbox, order, waiting},
};

suite!(
    b25_what_a_handler_publishes_is_handled_once_by_the_next,
    b25_a_copy_of_a_message_publishes_nothing,
    b25_what_is_published_in_a_transaction_is_handled_if_it_commits,
);

async fn b25_what_a_handler_publishes_is_handled_once_by_the_next<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("invoice.created").await;
    let mut inbox = inbox(&world, &["orders", "invoices"]).await;
    order(&world, "o1", 3).await;
    for _ in 0..4 {
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
    nothing_more(&mut inbox).await;
    world.assert_done("orders", "o1").await;
    let invoices = "SELECT count(DISTINCT msg_id) FROM effects WHERE grp = 'invoices'";
    assert_eq!(world.database.number(invoices).await, 3);
    assert_eq!(waiting(&world.database).await, 0);
    let keys: Vec<_> = world
        .flaky
        .published()
        .iter()
        .map(|message| message.key.clone())
        .collect();
    assert_eq!(keys, vec![Some("order-o1".into()); 3]);
}

async fn b25_a_copy_of_a_message_publishes_nothing<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("invoice.created").await;
    let mut inbox = inbox(&world, &["orders"]).await;
    order(&world, "o1", 1).await;
    order(&world, "o1", 1).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    nothing_more(&mut inbox).await;
    assert_eq!(world.flaky.published().len(), 1);
}

async fn b25_what_is_published_in_a_transaction_is_handled_if_it_commits<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.broker.spread("invoice.created").await;
    let mut inbox = inbox(&world, &["invoices"]).await;
    let mut tx = world.database.begin().await;
    assert_eq!(
        inbox_runtime::publish(&mut *tx, invoice("gone"))
            .await
            .expect("published"),
        "gone"
    );
    D::rollback(tx).await;
    let mut tx = world.database.begin().await;
    inbox_runtime::publish(&mut *tx, invoice("i1"))
        .await
        .expect("published");
    let made = inbox_runtime::publish(&mut *tx, Order::new("order-1").to("invoice.created"))
        .await
        .expect("published");
    D::commit(tx).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    nothing_more(&mut inbox).await;
    for id in ["i1", &made] {
        world.assert_done("invoices", id).await;
    }
    assert_eq!(made.len(), 36);
    assert_eq!(made.as_bytes()[14], b'7', "{made}");
    world.assert_untouched("invoices", "gone").await;
    assert_eq!(waiting(&world.database).await, 0);
}
