//! An `Outbox` in a handler without a transaction.

use inbox_runtime::{HandlerError, Outbox, inbox_handler};

#[inbox_handler(group = "mail", subject = "order.created", ack = "at_least_once")]
async fn send(outbox: Outbox) -> Result<(), HandlerError> {
    drop(outbox);
    Ok(())
}

fn main() {}
