//! The start of an inbox: what is checked, what is made, and the ways to run it.

mod checks;
mod handlers;
mod running;
mod shape;
mod tables;
mod waiting;
