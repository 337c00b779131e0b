//! What other attributes on a handler do, and that it stays a function like any other.

use std::time::Duration;

use inbox_runtime::{
    AckStrategy, Backoff, HandlerError, IdSource, Json, StartPosition, inbox_handler,
    sqlx::{self, Connection, SqliteConnection},
};
use inbox_tests::linked;

#[derive(serde::Deserialize)]
struct OrderCreated {
    order_id: i64,
}

/// Writes the invoice.
#[inbox_handler(group = "billing", subject = "order.created", ack = "exactly_once")]
async fn create_invoice(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoices (order_id) VALUES (?)")
        .bind(order.order_id)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn f90_a_unit_test_calls_the_handler_directly() -> Result<(), sqlx::Error> {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
    sqlx::query("CREATE TABLE invoices (order_id INTEGER)")
        .execute(&mut connection)
        .await?;
    let mut tx = connection.begin().await?;
    create_invoice(&mut tx, Json(OrderCreated { order_id: 7 })).await?;
    tx.commit().await?;
    let order_id: i64 = sqlx::query_scalar("SELECT order_id FROM invoices")
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(order_id, 7);
    Ok(())
}

// None of these types exists: this compiles only if function and registration are both left out.

#[cfg(any())]
#[inbox_handler(group = "f90", subject = "cfg.above")]
async fn cfg_above(tx: &mut NoSuchConnection, order: NoSuchOrder) -> NoSuchResult {}

#[inbox_handler(group = "f90", subject = "cfg.below")]
#[cfg(any())]
async fn cfg_below(tx: &mut NoSuchConnection, order: NoSuchOrder) -> NoSuchResult {}

#[inbox_handler(group = "f90", subject = "cfg_attr.below")]
#[cfg_attr(all(), doc = "Left out.", cfg(any()))]
async fn cfg_attr_below(tx: &mut NoSuchConnection, order: NoSuchOrder) -> NoSuchResult {}

/// A version for each of two conditions.
#[inbox_handler(group = "f90", subject = "versions", ack = "at_least_once")]
#[cfg(not(test))]
async fn versions(order: NoSuchOrder) -> NoSuchResult {}

/// A version for each of two conditions.
#[inbox_handler(group = "f90", subject = "versions", ack = "at_least_once")]
#[cfg(test)]
async fn versions(order: Json<u8>) -> Result<(), HandlerError> {
    let _ = order;
    Ok(())
}

#[tokio::test]
async fn f90_a_handler_that_cfg_disables_is_not_registered() {
    let handlers = linked("f90").await;
    let subjects: Vec<_> = handlers.iter().map(|meta| meta.subject).collect();
    assert_eq!(
        subjects,
        ["all.kinds", "instrument.above", "instrument.below", "versions"]
    );
    assert!(versions(Json(1)).await.is_ok());
}

#[tracing::instrument(skip_all)]
#[inbox_handler(group = "f90", subject = "instrument.above", ack = "at_least_once")]
async fn instrument_above(order: Json<u8>) -> Result<(), HandlerError> {
    let _ = order;
    Ok(())
}

#[inbox_handler(group = "f90", subject = "instrument.below")]
#[tracing::instrument(skip_all, err(Debug))]
async fn instrument_below(tx: &mut SqliteConnection, Json(order): Json<u8>) -> Result<(), HandlerError> {
    let _ = (tx, order);
    Ok(())
}

/// Has one of everything.
#[inbox_handler(group = "f90", subject = "all.kinds", ack = "at_least_once")]
#[deprecated = "kept for the old subject"]
#[must_use = "a handler's result says what became of the message"]
#[allow(clippy::unused_async)]
#[cfg_attr(all(), inline, doc = "And more.")]
#[doc(alias = "kinds")]
pub(crate) async fn all_kinds(
    #[allow(unused_variables)] order: Json<u8>,
    #[cfg_attr(all(), allow(unused_variables))] flag: Json<bool>,
) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::test]
#[allow(deprecated, reason = "it is the test's subject")]
async fn f90_other_attributes_stay_on_the_function() -> Result<(), sqlx::Error> {
    assert!(instrument_above(Json(1)).await.is_ok());
    let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
    assert!(instrument_below(&mut connection, Json(1)).await.is_ok());
    assert!(all_kinds(Json(1), Json(true)).await.is_ok());
    Ok(())
}

#[inbox_handler(
    group = "keys",
    subject = "every.key",
    ack = "at_least_once",
    commit = "on_persist",
    id = "json:/order/id",
    start = "new",
    timeout = "1500ms",
    max_attempts = "unlimited",
    backoff = "1s..2s",
    concurrency = 1,
    stream = "ORDERS",
    ordered = true
)]
async fn every_key() -> Result<(), HandlerError> {
    Ok(())
}

const FIRST_LINE: u32 = line!() + 2;

#[inbox_handler(group = "keys", subject = "only.what.must.be")]
async fn r#match(tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    let _ = tx;
    Ok(())
}

#[tokio::test]
async fn a_handler_is_registered_with_what_its_attribute_says() {
    let handlers = linked("keys").await;
    let [every, least] = &handlers[..] else {
        panic!("{handlers:?}");
    };
    assert_eq!(
        (every.ack, every.id),
        (AckStrategy::OnPersist, IdSource::Json("/order/id"))
    );
    assert_eq!(
        (every.start, every.timeout),
        (StartPosition::New, Duration::from_millis(1500))
    );
    let backoff = Backoff {
        first: Duration::from_secs(1),
        max: Duration::from_secs(2),
    };
    assert_eq!(
        (every.max_attempts, every.backoff, every.concurrency),
        (None, backoff, 1)
    );
    assert_eq!((every.stream, every.ordered), (Some("ORDERS"), true));

    assert_eq!(least.name, "macros::attributes::match");
    assert_eq!((least.ack, least.id), (AckStrategy::ExactlyOnce, IdSource::Auto));
    assert_eq!(
        (least.max_attempts, least.backoff, least.concurrency),
        (Some(20), Backoff::DEFAULT, 1)
    );
    assert_eq!((least.stream, least.ordered), (None, false));
    assert_eq!((least.file, least.line), (file!(), FIRST_LINE));
    assert!(every_key().await.is_ok());
}
