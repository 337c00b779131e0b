#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

type Tx = inbox_runtime::sqlx::Transaction<'static, inbox_runtime::sqlx::Sqlite>;

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(tx: &mut Tx) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
