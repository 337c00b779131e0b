#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created", ack = "at_least_once")]
async fn on_order(_tx: SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
