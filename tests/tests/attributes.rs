//! What other attributes on a handler do, and that it stays a function like any other.
#![allow(clippy::unused_async, reason = "a handler is async, whether it waits or not")]

use inbox_runtime::{
    HandlerError, Json, inbox_handler,
    sqlx::{self, Connection, SqliteConnection},
};

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
