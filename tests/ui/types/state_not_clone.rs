#![allow(unused)]

use inbox_runtime::{HandlerError, State, inbox_handler, sqlx::SqliteConnection};

struct Mailer;

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection, mailer: State<Mailer>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
