//! Publishing and cancelling in a transaction of the application's.

use std::time::Duration;

use inbox_runtime::{Message, Outcome, PublishError};
use inbox_tests::{Order, TestBroker, TestDatabase, World, embedded_suite, next, nothing_more};

use super::handlers::{inbox, waiting};

embedded_suite!(
    b24_a_delayed_message_is_published_when_it_is_due,
    b24_a_delayed_message_can_be_cancelled,
    b24_without_a_transaction_nothing_is_published,
    b24_what_no_broker_takes_is_refused_at_once,
    b24_a_nested_transaction_takes_back_what_was_published_in_it,
);

pub(crate) fn invoice(id: &'static str) -> Message {
    Order::new("order-1").to("invoice.created").id(id).key("order-1")
}

async fn b24_a_delayed_message_is_published_when_it_is_due<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = inbox(&world, &["invoices"]).await;
    let mut tx = world.database.begin().await;
    for id in ["i1", "i2"] {
        let later = invoice(id).delay(Duration::from_secs(3600));
        inbox_runtime::publish(&mut *tx, later).await.expect("published");
    }
    D::commit(tx).await;
    nothing_more(&mut inbox).await;
    let later = "SELECT count(*) FROM inbox_outbox_later";
    assert_eq!(world.database.number(later).await, 2);
    world.database.exec(D::HURRY).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(world.database.number(later).await, 0);
    let ids = world
        .flaky
        .published()
        .iter()
        .map(|message| message.headers.get("message_id").map(<[u8]>::to_vec))
        .collect::<Vec<_>>();
    assert_eq!(ids, [Some(b"i1".to_vec()), Some(b"i2".to_vec())]);
}

async fn b24_a_delayed_message_can_be_cancelled<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let mut inbox = inbox(&world, &["invoices"]).await;
    let mut tx = world.database.begin().await;
    let later = invoice("i1").delay(Duration::from_secs(3600));
    let id = inbox_runtime::publish(&mut *tx, later).await.expect("published");
    D::commit(tx).await;

    let mut tx = world.database.begin().await;
    assert!(inbox_runtime::cancel(&mut *tx, &id).await.expect("cancelled"));
    D::rollback(tx).await;
    let mut tx = world.database.begin().await;
    assert!(inbox_runtime::cancel(&mut *tx, &id).await.expect("cancelled"));
    assert!(!inbox_runtime::cancel(&mut *tx, &id).await.expect("gone"));
    D::commit(tx).await;
    world.database.exec(D::HURRY).await;
    nothing_more(&mut inbox).await;
    world.assert_untouched("invoices", "i1").await;
}

async fn b24_without_a_transaction_nothing_is_published<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    inbox(&world, &["invoices"]).await.close().await;
    let error = world
        .database
        .without_tx(async |conn| inbox_runtime::publish(conn, invoice("i1")).await)
        .await;
    assert!(matches!(error, Err(PublishError::NoTransaction)), "{error:?}");
    assert_eq!(waiting(&world.database).await, 0);
}

async fn b24_what_no_broker_takes_is_refused_at_once<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    inbox(&world, &["invoices"]).await.close().await;
    let mut tx = world.database.begin().await;
    for message in [
        Message::new("invoice.>", "1"),
        Message::new("invoice", "1").header("a b", "1"),
        Message::new("invoice", "1").id("x".repeat(513)),
    ] {
        let refused = inbox_runtime::publish(&mut *tx, message).await;
        assert!(matches!(refused, Err(PublishError::Invalid(_))), "{refused:?}");
    }
    D::commit(tx).await;
    assert_eq!(waiting(&world.database).await, 0);
}

async fn b24_a_nested_transaction_takes_back_what_was_published_in_it<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    inbox(&world, &["invoices"]).await.close().await;
    let mut tx = world.database.begin().await;
    D::in_savepoint(
        &mut tx,
        async |conn| inbox_runtime::publish(conn, invoice("gone")).await.map(drop),
        false,
    )
    .await;
    D::in_savepoint(
        &mut tx,
        async |conn| inbox_runtime::publish(conn, invoice("kept")).await.map(drop),
        true,
    )
    .await;
    D::commit(tx).await;
    assert_eq!(waiting(&world.database).await, 1);
}
