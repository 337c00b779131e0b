//! The brokers and the stores of the runtime pass the checks that those of your own are put to.

mod broker;
mod broker_mutants;
mod mutants;
mod store;
