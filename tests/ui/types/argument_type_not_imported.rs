#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

mod orders {
    #[derive(serde::Deserialize)]
    pub struct Order {
        id: u64,
    }
}

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, order: Json<Order>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
