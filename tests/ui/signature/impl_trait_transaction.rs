#![allow(unused)]

use inbox_runtime::{HandlerError, InboxConnection, inbox_handler};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(_tx: &mut impl InboxConnection) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
