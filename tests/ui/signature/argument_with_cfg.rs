#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, #[cfg(any())] _order: Json<u8>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
