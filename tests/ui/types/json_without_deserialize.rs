#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

struct Order {
    id: u64,
}

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, Json(order): Json<Order>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
