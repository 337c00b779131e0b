//! What a program can do to its own runtime: panics, destructors that panic, blocked threads, futures that are dropped. It
//! is rolled back and counted, and the others go on.

mod blocked;
mod broker;
mod handlers;
mod hostile;
