//! What an annotated function registers: its metadata and how to decode its arguments.

use std::fmt;

use crate::{
    extract::{ArgCheck, DeliveryContext, Rejection},
    handler::HandlerMeta,
    invocation::Invocation,
    store::{Store, detached::Detached},
};

/// How the arguments of a handler are made from a delivery.
pub type Decode<S> = fn(&DeliveryContext<'_>) -> Result<Invocation<S>, Rejection>;

/// One registered handler of a store. Made by `#[inbox_handler]`, found through `inventory`.
pub struct Registration<S: Store> {
    pub(crate) meta: HandlerMeta,
    pub(crate) decode: Decode<S>,
    pub(crate) checks: &'static [ArgCheck],
}

impl<S: Store> Registration<S> {
    /// Puts a registration together.
    #[must_use]
    pub const fn new(meta: HandlerMeta, decode: Decode<S>, checks: &'static [ArgCheck]) -> Self {
        Self { meta, decode, checks }
    }
}

impl<S: Store> fmt::Debug for Registration<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

// One table for each store, so that features are additive.
inventory::collect!(Registration<Detached>);
#[cfg(feature = "postgres")]
inventory::collect!(Registration<crate::store::postgres::PostgresStore>);
#[cfg(feature = "sqlite")]
inventory::collect!(Registration<crate::store::sqlite::SqliteStore>);
