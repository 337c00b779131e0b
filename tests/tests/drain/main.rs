//! The stop of an inbox or of a process: what is finished, what is released, and what is left behind.

mod blocked_threads;
mod signals;
mod waiting_messages;
