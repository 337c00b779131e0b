#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created", ordered = true, concurrency = 4)]
async fn on_order(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
