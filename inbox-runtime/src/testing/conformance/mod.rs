//! What the runtime relies on, as checks that a broker or a store of your own can be put to.

mod broker;
mod store;

pub use broker::{BrokerRules, broker};
pub use store::store;
