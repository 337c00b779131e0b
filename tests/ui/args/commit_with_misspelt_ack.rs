#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(
    group = "billing",
    subject = "order.created",
    ack = "atleast_once",
    commit = "on_success"
)]
async fn on_order(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
