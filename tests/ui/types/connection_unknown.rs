#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

struct MyConn;

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(tx: &mut MyConn) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
