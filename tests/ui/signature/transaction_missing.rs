#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_order: Json<u8>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
