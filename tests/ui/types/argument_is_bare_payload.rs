#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

#[derive(serde::Deserialize)]
struct Order {
    id: u64,
}

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, order: Order) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
