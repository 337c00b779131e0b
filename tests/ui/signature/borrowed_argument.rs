#![allow(unused)]

use inbox_runtime::{HandlerError, Meta, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, _meta: &Meta) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
