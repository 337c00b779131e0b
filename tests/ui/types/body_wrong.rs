#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, order: Json<u8>) -> Result<(), HandlerError> {
    order.missing();
    Ok(())
}

fn main() {}
