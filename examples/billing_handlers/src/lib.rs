//! The handlers of billing, in a crate of their own: a program that links it runs them.

use inbox_runtime::{
    Json, inbox_handler,
    sqlx::{self, SqliteConnection},
};

/// An order that was placed.
#[derive(Debug, serde::Deserialize)]
pub struct OrderCreated {
    /// Its id.
    pub order_id: String,
    /// What it costs.
    pub amount_cents: i64,
}

// A handler need not be public: it is found through the crate that it is in.
#[inbox_handler(group = "billing", subject = "order.created")]
async fn create_invoice(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

// Each handler has its own place in the stream: what one of them does is not in order with what another one does.
#[inbox_handler(group = "billing", subject = "customer.created")]
async fn open_account(tx: &mut SqliteConnection, Json(customer): Json<String>) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO accounts (customer) VALUES ($1)")
        .bind(customer)
        .execute(&mut *tx)
        .await?;
    Ok(())
}
