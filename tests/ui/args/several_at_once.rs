#![allow(unused)]

use inbox_runtime::inbox_handler;

// Everything that is wrong with the attribute and with the signature, each once.
#[inbox_handler(gruop = "billing", subject = "order..created", ack = "exactly-once", timeout = "30")]
fn on_order(flag: &bool) {}

fn main() {}
