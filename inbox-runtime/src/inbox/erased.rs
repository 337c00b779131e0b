//! The stores that are compiled in, behind `dyn`: what the start of the program needs of each.

use std::{
    any::{Any, TypeId},
    marker::PhantomData,
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use crate::{
    consumer::Runner,
    contain::contain,
    counters::Counters,
    extract::{ArgCheck, States},
    handler::HandlerMeta,
    pipeline::{
        Availability, LeaseKeeper, PendingRefunds, Pipeline, PipelineStatus, ProgressTracker, Running, SoloGate,
        StrandedReplays, Strikes,
    },
    registry::Registration,
    store::{ConnectError, Records, Store, StoreSettings, detached::Detached},
    telemetry::{Instruments, OpenTransactions},
};

/// A connected store whose type is not of interest.
pub(crate) type ErasedStore = Box<dyn Any + Send + Sync>;

/// What all pipelines of a program share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) states: Arc<States>,
    pub(crate) counters: Arc<Counters>,
    /// See [`Stop::now`](crate::consumer::Stop::now).
    pub(crate) stopped: CancellationToken,
    /// Lets a message that may have killed a process run alone.
    pub(crate) gate: SoloGate,
    /// The dead letters that nobody replays.
    pub(crate) stranded: StrandedReplays,
}

/// A handler that was registered with one of the stores.
pub(crate) trait ErasedRegistration: Send + Sync {
    fn meta(&self) -> &'static HandlerMeta;

    /// The type of its store.
    fn store(&self) -> TypeId;

    /// What its arguments lack.
    fn missing(&self, states: &States) -> Vec<String>;

    /// Its pipeline, which works by `meta`; `None` if `store` is another kind of store.
    fn pipeline(
        &self,
        meta: &HandlerMeta,
        store: &ErasedStore,
        shared: &Shared,
    ) -> Option<(Arc<dyn Runner>, PipelineStatus)>;
}

/// One store, as far as it needs no connection.
pub(crate) trait StoreDriver: Send + Sync {
    fn store(&self) -> TypeId;
    fn name(&self) -> &'static str;
    fn variable(&self) -> &'static str;
    fn schemes(&self) -> &'static [&'static str];
    fn example_url(&self) -> &'static str;
    fn transactional(&self) -> bool;
    fn entries(&self) -> Vec<Box<dyn ErasedRegistration>>;
    fn at(&self, url: &str, settings: StoreSettings) -> Result<ErasedStore, ConnectError>;
    fn records(&self, store: &ErasedStore) -> Option<Arc<dyn Records>>;
    fn max_connections(&self, store: &ErasedStore) -> Option<u32>;
}

/// Every store that is compiled in; a row for each.
pub(crate) fn drivers() -> Vec<Box<dyn StoreDriver>> {
    vec![
        #[cfg(feature = "postgres")]
        Box::new(Driver::<crate::store::postgres::PostgresStore>(PhantomData)),
        #[cfg(feature = "sqlite")]
        Box::new(Driver::<crate::store::sqlite::SqliteStore>(PhantomData)),
        Box::new(Driver::<Detached>(PhantomData)),
    ]
}

struct Driver<S>(PhantomData<fn() -> S>);

impl<S: Store> StoreDriver for Driver<S>
where
    Registration<S>: inventory::Collect,
{
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

    fn entries(&self) -> Vec<Box<dyn ErasedRegistration>> {
        inventory::iter::<Registration<S>>
            .into_iter()
            .map(|registration| Box::new(registration) as Box<dyn ErasedRegistration>)
            .collect()
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

impl<S: Store> ErasedRegistration for &'static Registration<S> {
    fn meta(&self) -> &'static HandlerMeta {
        &self.meta
    }

    fn store(&self) -> TypeId {
        TypeId::of::<S>()
    }

    fn missing(&self, states: &States) -> Vec<String> {
        let run = |check: &ArgCheck| {
            let checked = contain(|| check(states));
            checked.unwrap_or_else(|panic| Err(format!("the check of an argument panicked: {panic}")))
        };
        self.checks.iter().filter_map(|check| run(check).err()).collect()
    }

    fn pipeline(
        &self,
        meta: &HandlerMeta,
        store: &ErasedStore,
        shared: &Shared,
    ) -> Option<(Arc<dyn Runner>, PipelineStatus)> {
        let store = store.downcast_ref::<S>()?.clone();
        let instruments = Instruments::new(meta);
        let status = PipelineStatus {
            availability: Availability::new(),
            leases: LeaseKeeper::new(instruments.clone()),
            open: OpenTransactions::default(),
            progress: ProgressTracker::new(),
            stranded: shared.stranded.clone(),
        };
        shared.gate.register_timeout(meta.timeout);
        shared.stranded.add_handler(meta.group, meta.name);
        let pipeline = Pipeline {
            meta: meta.clone(),
            decode: self.decode,
            records: store.records(),
            store,
            states: shared.states.clone(),
            counters: shared.counters.clone(),
            status: status.clone(),
            refunds: PendingRefunds::default(),
            strikes: Strikes::default(),
            running: Running::default(),
            stopped: shared.stopped.clone(),
            gate: shared.gate.clone(),
            instruments,
        };
        Some((Arc::new(pipeline), status))
    }
}
