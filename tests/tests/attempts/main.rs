//! Attempts: which failures count, how many there are, and what is waited for without counting any.

mod errors;
mod limits;
mod outages;
