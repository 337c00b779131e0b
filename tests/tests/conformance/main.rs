//! The brokers and the stores of the runtime pass the checks that those of your own are put to.

mod broker;
mod mutants;
mod store;
