#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

use inbox_runtime::sqlx::{Sqlite, Transaction};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut Transaction<'_, Sqlite>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
