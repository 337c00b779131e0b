//! The ack strategies: when each acknowledges, whether it claims, and what it does with a duplicate, a locked message and a
//! handler that fails.

mod experiment;
mod strategies;
mod without_transaction;
