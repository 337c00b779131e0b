//! What a program can do to its own runtime: panics, destructors that panic, timeouts, blocked threads, a broker that panics.
//! It is rolled back and counted, and the other messages are handled.

mod broker;
mod hostile;
mod panics;
mod timeouts;
