//! What an annotated function registers: its metadata and how to decode its arguments.

use std::fmt;

use crate::{
    extract::{ArgCheck, DeliveryContext, Rejection},
    handler::HandlerMeta,
    invocation::Invocation,
    store::{Store, detached::Detached},
};

/// How the arguments of a handler's call are made from what was delivered. Opaque, so that a handler of several deliveries at
/// once needs another constructor, and no other registration.
pub struct Decode<S: Store>(DecodeOne<S>);

type DecodeOne<S> = fn(&DeliveryContext<'_>) -> Result<Invocation<S>, Rejection>;

impl<S: Store> Decode<S> {
    /// Of a handler that is called with one delivery.
    #[must_use]
    pub const fn one(decode: DecodeOne<S>) -> Self {
        Self(decode)
    }

    /// Makes the arguments from a delivery.
    pub(crate) fn decode(&self, context: &DeliveryContext<'_>) -> Result<Invocation<S>, Rejection> {
        let Self(decode) = self;
        decode(context)
    }
}

impl<S: Store> Clone for Decode<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Copy for Decode<S> {}

impl<S: Store> fmt::Debug for Decode<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decode").finish_non_exhaustive()
    }
}

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

/// What is done with each registration, whatever its store.
pub(crate) trait Visitor {
    fn registration<S: Store>(&mut self, registration: &'static Registration<S>);
}

/// Shows a visitor every registration of the program.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    #[cfg(feature = "postgres")]
    visit_store::<crate::store::postgres::PostgresStore>(visitor);
    #[cfg(feature = "sqlite")]
    visit_store::<crate::store::sqlite::SqliteStore>(visitor);
    visit_store::<Detached>(visitor);
}

fn visit_store<S: Store>(visitor: &mut impl Visitor)
where
    Registration<S>: inventory::Collect,
{
    for registration in inventory::iter::<Registration<S>> {
        visitor.registration(registration);
    }
}
