#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

const GROUP: u32 = 5;

#[inbox_handler(group = GROUP, subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
