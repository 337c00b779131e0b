#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

struct Orders;

impl Orders {
    #[inbox_handler(group = "billing", subject = "order.created")]
    async fn on_order(_tx: &mut SqliteConnection, _orders: Json<Self>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
