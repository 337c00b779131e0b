#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler};

struct MyConn;

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(order: Json<u8>, tx: &mut MyConn) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
