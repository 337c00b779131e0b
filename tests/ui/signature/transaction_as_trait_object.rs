#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut dyn Send) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
