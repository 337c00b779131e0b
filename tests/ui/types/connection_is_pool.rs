#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

use inbox_runtime::sqlx::SqlitePool;

#[inbox_handler(group = "billing", subject = "order.created", ack = "at_least_once")]
async fn on_order(pool: SqlitePool) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
