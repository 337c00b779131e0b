//! Handlers in a crate of its own, whose lints are as strict as they get: it compiles, and under clippy too.
#![forbid(unsafe_code)]
#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    missing_debug_implementations,
    single_use_lifetimes,
    unused_lifetimes,
    unused_results,
    variant_size_differences,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_imports
)]

use inbox_runtime::{
    HandlerError, Json, Meta, State, inbox_handler,
    sqlx::{self, SqliteConnection},
};

/// An order.
#[derive(Debug, serde::Deserialize)]
pub struct Order {
    id: i64,
}

/// Writes the invoice.
///
/// # Errors
///
/// What the database says.
#[inbox_handler(
    group = "f91",
    subject = "order.created",
    timeout = "30s",
    backoff = "1s..5m",
    concurrency = 2
)]
pub async fn create_invoice(
    Json(order): Json<Order>,
    _meta: Meta,
    tx: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    let _ = sqlx::query("SELECT ?").bind(order.id).execute(&mut *tx).await?;
    Ok(())
}

/// Sends a mail.
#[inbox_handler(group = "f91", subject = "order.>", ack = "at_most_once", id = "header:order-id")]
async fn notify(State(sender): State<String>, order: Json<Order>) -> Result<(), HandlerError> {
    ready(sender.len(), order.0.id).await;
    Ok(())
}

async fn ready(_length: usize, _id: i64) {
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn f91_no_lint_fires_inside_the_expansion() {
    assert!(notify(State(String::new()), Json(Order { id: 1 })).await.is_ok());
}
