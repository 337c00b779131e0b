#![allow(unused)]

use inbox_runtime::{inbox_handler, HandlerError, Json, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, order: Json<u8>) -> Result<(), HandlerError> {
    let x = ;
    Ok(())
}

fn main() {}
