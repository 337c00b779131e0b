#![allow(unused)]

use inbox_runtime::inbox_handler;

struct OnOrder;

#[inbox_handler(group = "billing", subject = "order.created")]
impl OnOrder {}

fn main() {}
