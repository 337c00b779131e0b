//! The start of an inbox: what is checked, what is created, what is waited for, and the ways to run it.

mod checks;
mod handlers;
mod linking;
mod running;
mod table_shapes;
mod tables;
mod unavailable_database;
