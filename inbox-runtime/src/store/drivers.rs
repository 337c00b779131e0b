//! The databases that are compiled in, by the schemes of their URLs, and what may be asked of each without a connection.

use std::{
    any::{Any, TypeId},
    marker::PhantomData,
    sync::Arc,
};

use super::{ConnectError, Records, Store, StoreSettings, detached::Detached};

/// A connected store whose type is not of interest.
pub(crate) type ErasedStore = Box<dyn Any + Send + Sync>;

/// One store, as far as it needs no connection.
pub(crate) trait StoreDriver: Send + Sync {
    fn store(&self) -> TypeId;
    fn name(&self) -> &'static str;
    fn variable(&self) -> &'static str;
    fn schemes(&self) -> &'static [&'static str];
    fn example_url(&self) -> &'static str;
    fn transactional(&self) -> bool;
    fn at(&self, url: &str, settings: StoreSettings) -> Result<ErasedStore, ConnectError>;
    fn records(&self, store: &ErasedStore) -> Option<Arc<dyn Records>>;
    fn max_connections(&self, store: &ErasedStore) -> Option<u32>;
}

/// Every store that is compiled in; a row for each.
pub(crate) fn drivers() -> Vec<Box<dyn StoreDriver>> {
    vec![
        #[cfg(feature = "postgres")]
        Box::new(Driver::<super::postgres::PostgresStore>(PhantomData)),
        #[cfg(feature = "sqlite")]
        Box::new(Driver::<super::sqlite::SqliteStore>(PhantomData)),
        Box::new(Driver::<Detached>(PhantomData)),
    ]
}

struct Driver<S>(PhantomData<fn() -> S>);

impl<S: Store> StoreDriver for Driver<S> {
    fn store(&self) -> TypeId {
        TypeId::of::<S>()
    }

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn variable(&self) -> &'static str {
        S::VARIABLE
    }

    fn schemes(&self) -> &'static [&'static str] {
        S::SCHEMES
    }

    fn example_url(&self) -> &'static str {
        S::EXAMPLE_URL
    }

    fn transactional(&self) -> bool {
        S::TRANSACTIONAL
    }

    fn at(&self, url: &str, settings: StoreSettings) -> Result<ErasedStore, ConnectError> {
        Ok(Box::new(S::from_url(url, settings)?))
    }

    fn records(&self, store: &ErasedStore) -> Option<Arc<dyn Records>> {
        Some(store.downcast_ref::<S>()?.records())
    }

    fn max_connections(&self, store: &ErasedStore) -> Option<u32> {
        store.downcast_ref::<S>()?.max_connections()
    }
}
