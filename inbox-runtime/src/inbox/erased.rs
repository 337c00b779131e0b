//! The registered handlers behind `dyn`, whatever their stores: what the start of the program needs of each.

use std::{any::TypeId, sync::Arc};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::DynBroker,
    consumer::Runner,
    contain::contain,
    counters::Counters,
    extract::{ArgCheck, States},
    handler::HandlerMeta,
    outbox_watch::OutboxWatch,
    pipeline::{
        Availability, LeaseKeeper, PendingRefunds, Pipeline, PipelineStatus, ProgressTracker, Running, SoloGate,
        Strikes,
    },
    registry::{Registration, Visitor, visit},
    store::{Records, Store, drivers::ErasedStore},
    telemetry::{Instruments, OpenTransactions},
    warnings::Warnings,
};

/// What all pipelines of a program share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) broker: DynBroker,
    pub(crate) states: Arc<States>,
    pub(crate) counters: Arc<Counters>,
    /// See [`Stop::now`](crate::consumer::Stop::now).
    pub(crate) stopped: CancellationToken,
    /// Lets a message that may have killed a process run alone.
    pub(crate) gate: SoloGate,
    pub(crate) warnings: Warnings,
}

/// A handler that was registered with one of the stores.
pub(crate) trait ErasedRegistration: Send + Sync {
    fn meta(&self) -> &'static HandlerMeta;

    /// The type of its store.
    fn store(&self) -> TypeId;

    /// What its arguments lack.
    fn missing(&self, states: &States) -> Vec<String>;

    /// Whether it takes an `Outbox`.
    fn publishes(&self) -> bool;

    /// Its pipeline, which works by `meta`, keeps its records in `records` and publishes to `outbox`; `None` if `store` is another kind of store.
    fn pipeline(
        &self,
        meta: &HandlerMeta,
        store: &ErasedStore,
        records: &Arc<dyn Records>,
        outbox: &Arc<OutboxWatch>,
        shared: &Shared,
    ) -> Option<(Arc<dyn Runner>, PipelineStatus)>;
}

/// Every handler of the program.
pub(super) fn registrations() -> Vec<Box<dyn ErasedRegistration>> {
    struct Erase(Vec<Box<dyn ErasedRegistration>>);

    impl Visitor for Erase {
        fn registration<S: Store>(&mut self, registration: &'static Registration<S>) {
            self.0.push(Box::new(registration));
        }
    }

    let mut all = Erase(Vec::new());
    visit(&mut all);
    all.0
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
            let checked = contain(|| (check.check)(states));
            checked.unwrap_or_else(|panic| Err(format!("the check of an argument panicked: {panic}")))
        };
        self.checks.iter().filter_map(|check| run(check).err()).collect()
    }

    fn publishes(&self) -> bool {
        self.checks.iter().any(|check| check.publishes)
    }

    fn pipeline(
        &self,
        meta: &HandlerMeta,
        store: &ErasedStore,
        records: &Arc<dyn Records>,
        outbox: &Arc<OutboxWatch>,
        shared: &Shared,
    ) -> Option<(Arc<dyn Runner>, PipelineStatus)> {
        let store = store.downcast_ref::<S>()?.clone();
        let instruments = Instruments::new(meta);
        let status = PipelineStatus {
            availability: Availability::new(),
            leases: LeaseKeeper::new(instruments.clone()),
            open: OpenTransactions::default(),
            progress: ProgressTracker::new(),
            warnings: shared.warnings.clone(),
        };
        shared.gate.register_timeout(meta.timeout);
        let pipeline = Pipeline {
            meta: meta.clone(),
            decode: self.decode,
            records: records.clone(),
            store,
            states: shared.states.clone(),
            counters: shared.counters.clone(),
            status: status.clone(),
            refunds: PendingRefunds::default(),
            strikes: Strikes::default(),
            running: Running::default(),
            replays_due: Notify::new(),
            stopped: shared.stopped.clone(),
            gate: shared.gate.clone(),
            instruments,
            broker: shared.broker.clone(),
            outbox: self.publishes().then(|| outbox.clone()),
        };
        Some((Arc::new(pipeline), status))
    }
}
