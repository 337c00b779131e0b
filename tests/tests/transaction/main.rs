//! A message's transaction: what a handler may do to it, and futures that are dropped in the middle of it.

mod cancellation;
mod dropped_deliveries;
mod seal;
mod swallowed_errors;
