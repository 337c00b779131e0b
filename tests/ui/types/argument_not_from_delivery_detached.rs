#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

#[inbox_handler(group = "billing", subject = "order.created", ack = "at_least_once")]
async fn on_order(flag: bool) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
