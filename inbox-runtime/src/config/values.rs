//! What the environment and the file set.

use std::collections::BTreeMap;

use super::{
    overlay::Layer,
    overrides::Overrides,
    value::{Given, Secret},
};

/// The variable of the database, of whatever kind.
pub(crate) const DATABASE_URL: &str = "DATABASE_URL";

/// The settings as they were found, before code is laid over them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) settings: Layer,
    /// The URLs of databases, by the variable that each has.
    pub(crate) database_urls: BTreeMap<&'static str, Given<Secret>>,
    /// What is said of the connection to NATS, by the names of the URL's parameters.
    pub(crate) nats: BTreeMap<&'static str, Given<Secret>>,
    /// The properties of librdkafka.
    pub(crate) kafka: BTreeMap<String, Given<Secret>>,
    pub(crate) overrides: Overrides,
}
