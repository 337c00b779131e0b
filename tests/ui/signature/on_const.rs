#![allow(unused)]

use inbox_runtime::inbox_handler;

#[inbox_handler(group = "billing", subject = "order.created")]
const ON_ORDER: u32 = 1;

fn main() {}
