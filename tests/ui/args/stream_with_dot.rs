#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created", stream = "orders.eu")]
async fn on_order(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
