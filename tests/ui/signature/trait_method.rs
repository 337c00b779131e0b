#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

trait Orders {
    #[inbox_handler(group = "billing", subject = "order.created")]
    async fn on_order(_tx: &mut SqliteConnection) -> Result<(), HandlerError>;
}

fn main() {}
