#![allow(unused)]

use inbox_runtime::{HandlerError, inbox_handler};

mod db {
    pub mod sqlite {
        pub struct MyConn;
    }
}

#[inbox_handler(group = "billing", subject = "order.created")]
async fn on_order(tx: &mut db::sqlite::MyConn) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
