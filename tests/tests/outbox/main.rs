//! The outbox: what is published in a transaction, when a relay publishes it and in which order, and what becomes of it when the
//! broker or a process fails.

mod by_hand;
mod everywhere;
mod faults;
mod handlers;
mod modes;
mod order;
mod processes;
