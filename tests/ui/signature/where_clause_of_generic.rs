#![allow(unused)]

use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order<T>(_tx: &mut SqliteConnection, Json(_order): Json<T>) -> Result<(), HandlerError>
where
    T: Clone,
{
    Ok(())
}

fn main() {}
