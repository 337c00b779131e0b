#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

struct Order<'p>(&'p str);

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, _order: Json<Order<'_>>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
