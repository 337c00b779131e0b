#![allow(unused)]

use inbox_runtime::{HandlerError, IntoOutcome, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection) -> impl IntoOutcome {
    Ok::<(), HandlerError>(())
}

fn main() {}
