#![allow(unused)]

use inbox_runtime::inbox_handler;

#[inbox_handler(group = "billing", subject = "order.created")]
type OnOrder = fn(u8) -> u8;

fn main() {}
