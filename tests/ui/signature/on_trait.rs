#![allow(unused)]

use inbox_runtime::inbox_handler;

#[inbox_handler(group = "billing", subject = "order.created")]
trait OnOrder {}

fn main() {}
