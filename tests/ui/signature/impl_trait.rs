#![allow(unused)]

use inbox_runtime::{FromDelivery, HandlerError, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, _order: impl FromDelivery) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
