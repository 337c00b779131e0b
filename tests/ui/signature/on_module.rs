#![allow(unused)]

use inbox_runtime::inbox_handler;

#[inbox_handler(group = "billing", subject = "order.created")]
mod on_order {}

fn main() {}
