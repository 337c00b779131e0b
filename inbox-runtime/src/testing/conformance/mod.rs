//! What the runtime relies on, as checks that a broker of your own can be put to.

mod broker;

pub use broker::{BrokerRules, broker};
