#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

use std::rc::Rc;

async fn pause() {}

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(tx: &mut SqliteConnection, order: Json<u8>) -> Result<(), HandlerError> {
    let shared = Rc::new(order.0);
    pause().await;
    println!("{shared}");
    Ok(())
}

fn main() {}
