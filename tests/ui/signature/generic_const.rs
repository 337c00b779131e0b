#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order<const N: usize>(_tx: &mut SqliteConnection, Json(_order): Json<[u8; N]>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
