#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(tx: &mut PgConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
