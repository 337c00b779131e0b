//! Lists.
fn main() {}
