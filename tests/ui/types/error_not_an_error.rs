#![allow(unused)]

use inbox_runtime::{inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut SqliteConnection) -> Result<(), u32> {
    Ok(())
}

fn main() {}
