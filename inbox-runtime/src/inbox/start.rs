//! The start: databases are waited for, tables are made or checked, the broker is asked, and each handler gets its source.

use std::{any::TypeId, future::pending, sync::Arc, time::Duration};

use futures_util::future::try_join_all;

use super::{
    HandlerRunner, Inbox, InboxBuilder,
    builder::Signal,
    databases::{Database, distinct},
    outboxes::{Outbox, outboxes, relays},
    plan::{Plan, Planned, plan, subscriptions},
};
use crate::{
    backoff::Backoff,
    broker::{BrokerError, DynSource},
    consumer::Stop,
    counters::Counters,
    error::Error,
    error_chain::text,
    handler::StartPosition,
    health::{HandlerStatus, HealthHandle, LifecycleGuard},
    inbox::erased::Shared,
    pipeline::SoloGate,
    services::{Relay, Replayer, Services, Upkeep},
    store::{ConnectError, MigrateError, MigrateMode, StoreError, detached::Detached},
    warnings::Warnings,
};

/// The wait between two tries of a database that can't be used yet.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    max: Duration::from_secs(5),
};

/// How long a database may take to answer a question at the start.
const ANSWER: Duration = Duration::from_secs(10);

/// How long making and checking the tables may take: another program may be at it, or have a lock.
const MIGRATION: Duration = Duration::from_secs(300);

/// An inbox that is being started. What is to run is decided, health is served, and nothing is connected yet.
pub(super) struct Starting {
    plan: Plan,
    shared: Shared,
    stop: Stop,
    life: LifecycleGuard,
    #[cfg(feature = "http")]
    serving: Option<crate::http::Serving>,
    shutdown: Option<Signal>,
    abort: Option<Signal>,
}

impl Starting {
    /// Finds everything that is wrong with what is registered and configured, and serves health from now on.
    #[cfg_attr(
        not(feature = "http"),
        expect(clippy::unused_async, reason = "only a listener is waited for")
    )]
    pub(super) async fn new(mut builder: InboxBuilder) -> Result<Self, Error> {
        let plan = plan(&mut builder)?;
        let life = builder.life;
        #[cfg(feature = "http")]
        let serving = match &plan.settings.http_addr {
            Some(addr) => Some(crate::http::serve(addr, life.handle()).await?),
            None => None,
        };
        #[cfg(all(feature = "metrics", feature = "http"))]
        if builder.prometheus || serving.is_some() {
            // Before the pipelines register what they measure.
            crate::telemetry::prometheus::install();
        }
        let stop = Stop {
            drain: life.drain(),
            ..Stop::default()
        };
        Ok(Self {
            shared: Shared {
                broker: plan.broker.clone(),
                states: Arc::new(builder.states),
                counters: Arc::new(Counters::default()),
                stopped: stop.now.clone(),
                gate: SoloGate::default(),
                warnings: Warnings::default(),
            },
            plan,
            stop,
            life,
            #[cfg(feature = "http")]
            serving,
            shutdown: builder.shutdown,
            abort: builder.abort,
        })
    }

    pub(super) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    pub(super) fn health(&self) -> HealthHandle {
        self.life.handle()
    }

    #[cfg(feature = "http")]
    pub(super) fn http_addr(&self) -> Option<std::net::SocketAddr> {
        self.serving.as_ref().map(crate::http::Serving::addr)
    }

    /// Waits for the databases, makes or checks the tables, and subscribes. Told to stop meanwhile, it is an inbox without
    /// handlers, which ends as soon as it runs.
    pub(super) async fn finish(mut self) -> Result<Inbox, Error> {
        let told = async {
            tokio::select! {
                () = async { match &mut self.shutdown { Some(signal) => signal.await, None => pending().await } } => {}
                () = self.stop.drain.cancelled() => {}
            }
        };
        let prepared = tokio::select! {
            biased;
            () = told => {
                self.stop.drain.cancel();
                self.shutdown = None;
                tracing::info!("stopped before the inbox had started: nothing was handled");
                Prepared::default()
            }
            prepared = prepare(self.plan, &self.shared, &self.life) => prepared?,
        };
        self.life.prepared(prepared.watched);
        Ok(Inbox {
            runners: prepared.runners,
            services: prepared.services,
            relays: prepared.relays,
            descriptions: prepared.descriptions,
            counters: self.shared.counters,
            life: self.life,
            stop: self.stop,
            #[cfg(feature = "http")]
            serving: self.serving,
            shutdown_timeout: prepared.shutdown_timeout,
            shutdown: self.shutdown,
            abort: self.abort,
            next: 0,
        })
    }
}

/// What a start has made.
#[derive(Default)]
struct Prepared {
    runners: Vec<HandlerRunner>,
    services: Services,
    relays: Vec<Arc<Relay>>,
    watched: Vec<HandlerStatus>,
    descriptions: Vec<String>,
    shutdown_timeout: Duration,
}

/// Everything that needs the broker or a database, the broker first: what is wrong with it for good must not wait for a
/// database.
async fn prepare(plan: Plan, shared: &Shared, life: &LifecycleGuard) -> Result<Prepared, Error> {
    let mut descriptions = vec![plan.broker.describe().await?];
    tracing::info!(broker = descriptions[0], "the broker is ready");
    let prepared = distinct(&plan.databases).map(|database| prepare_database(database, plan.settings.migrate, life));
    let described = try_join_all(prepared).await?;
    descriptions.extend(described.into_iter().flatten());
    let mut subscriptions = subscriptions(&plan.handlers, plan.settings.ack_wait);
    for (planned, subscription) in plan.handlers.iter().zip(&mut subscriptions) {
        subscription.known = knows(planned, &plan.databases, life).await?;
    }
    let sources = plan.broker.subscribe(subscriptions).await?;
    check_sources(plan.handlers.len(), sources.len(), &descriptions[0])?;
    let outboxes = outboxes(&plan.databases, plan.settings.outbox_limits, &shared.warnings);
    let (runners, watched) = runners(
        plan.handlers,
        sources,
        &plan.databases,
        &outboxes,
        shared,
        plan.settings.stall_after,
    );
    let mut services = services(&runners, &plan.databases, shared);
    let relays = relays(plan.settings.outbox, &outboxes, shared, &mut services);
    Ok(Prepared {
        services,
        relays,
        runners,
        watched,
        descriptions,
        shutdown_timeout: plan.settings.shutdown_timeout,
    })
}

/// Whether the handler's database has records of its group, which is asked only where it makes a difference.
async fn knows(planned: &Planned, databases: &[Database], life: &LifecycleGuard) -> Result<bool, Error> {
    let kind = planned.entry.store();
    let database = databases.iter().find(|database| database.kind == kind);
    let Some(database) = database.filter(|_| planned.meta.start == StartPosition::New) else {
        return Ok(false);
    };
    patiently(database, life, || async {
        let known = within(ANSWER, database.records.has_group(planned.meta.group)).await?;
        known.map_err(|error| passing(&error))
    })
    .await
}

/// Why a database can't be used yet.
enum Setback {
    /// Waiting may help.
    Passing(String),
    /// It doesn't.
    Lasting(Error),
}

/// Waits until a database can be used: it answers, its tables are as they must be, and a row can be written. Returns its
/// line of the start report; there is none of the dead letters alone.
async fn prepare_database(
    database: &Database,
    migrate: MigrateMode,
    life: &LifecycleGuard,
) -> Result<Option<String>, Error> {
    let description = patiently(database, life, || try_database(database, migrate)).await?;
    if database.kind == TypeId::of::<Detached>() {
        return Ok(None);
    }
    tracing::info!(database = description, "the database is ready");
    Ok(Some(description))
}

/// Asks a database until it has an answer, or waiting doesn't help. Health says meanwhile what is waited for.
async fn patiently<T, F>(database: &Database, life: &LifecycleGuard, mut ask: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Setback>>,
{
    let mut tries = 0;
    loop {
        match ask().await {
            Ok(answer) => {
                life.goes_on(&database.label);
                return Ok(answer);
            }
            Err(Setback::Lasting(error)) => return Err(error),
            Err(Setback::Passing(why)) => life.waits(&database.label, why),
        }
        tries += 1;
        tokio::time::sleep(BACKOFF.pause(tries)).await;
    }
}

fn passing(error: &StoreError) -> Setback {
    Setback::Passing(text(error))
}

async fn try_database(database: &Database, migrate: MigrateMode) -> Result<String, Setback> {
    let records = &database.records;
    records.check_connection().await.map_err(|error| match error {
        ConnectError::Unavailable { .. } => Setback::Passing(error.to_string()),
        source => Setback::Lasting(Error::Connect {
            database: database.label.clone(),
            source,
        }),
    })?;
    let made = within(MIGRATION, records.migrate(migrate)).await?;
    made.map_err(|error| match error {
        MigrateError::Unavailable(_) => Setback::Passing(text(&error)),
        source => Setback::Lasting(Error::Migrate {
            database: database.label.clone(),
            source,
        }),
    })?;
    within(ANSWER, records.check_writable())
        .await?
        .map_err(|error| passing(&error))?;
    let described = within(ANSWER, records.describe()).await?;
    described.map_err(|error| passing(&error))
}

async fn within<T>(bound: Duration, question: impl Future<Output = T>) -> Result<T, Setback> {
    let answer = tokio::time::timeout(bound, question).await;
    answer.map_err(|_| Setback::Passing(format!("it is connected and hasn't answered for {bound:?}")))
}

/// A handler without a source would never be run.
fn check_sources(handlers: usize, sources: usize, broker: &str) -> Result<(), BrokerError> {
    if handlers == sources {
        return Ok(());
    }
    Err(BrokerError::Invalid(format!(
        "the broker {broker} returned {sources} sources for {handlers} subscriptions; `Broker::subscribe` returns one for each, \
         in their order"
    )))
}

/// Each handler with what runs it, and what is to be seen of it while it runs.
fn runners(
    handlers: Vec<Planned>,
    sources: Vec<DynSource>,
    databases: &[Database],
    outboxes: &[Outbox<'_>],
    shared: &Shared,
    stall_after: Duration,
) -> (Vec<HandlerRunner>, Vec<HandlerStatus>) {
    let (mut runners, mut watched) = (Vec::new(), Vec::new());
    for (Planned { entry, meta, subject }, source) in handlers.into_iter().zip(sources) {
        let pipeline = databases.iter().find_map(|database| {
            let outbox = outboxes
                .iter()
                .find(|outbox| Arc::ptr_eq(&outbox.database.records, &database.records))?;
            entry.pipeline(&meta, &database.store, &database.records, &outbox.watch, shared)
        });
        let Some((runner, status)) = pipeline else {
            // The plan has a database for every entry.
            continue;
        };
        tracing::info!(
            handler = meta.name,
            group = meta.group,
            subject,
            ack = meta.ack.as_str(),
            start = %meta.start,
            place = meta.place(),
            "a handler is ready"
        );
        watched.push(HandlerStatus {
            meta: meta.clone(),
            pipeline: status,
            source: source.status(),
            stall_after,
        });
        runners.push(HandlerRunner { meta, runner, source });
    }
    (runners, watched)
}

/// What runs beside the handlers: a replayer for each database that has dead letters of theirs, and the upkeep of the metrics.
fn services(runners: &[HandlerRunner], databases: &[Database], shared: &Shared) -> Services {
    let mut services = Services::default();
    services.add(Upkeep, &shared.warnings);
    let local = runners
        .iter()
        .map(|handler| (handler.meta.group.to_owned(), handler.meta.name.to_owned()));
    let local = Arc::new(local.collect());
    for database in distinct(databases) {
        let theirs = runners
            .iter()
            .filter(|handler| handler.runner.keeps_records_in(&database.records));
        let consumers: Vec<_> = theirs
            .map(|handler| (handler.meta.clone(), handler.runner.clone()))
            .collect();
        if !consumers.is_empty() {
            let replayer = Replayer::new(
                database.label.clone(),
                database.records.clone(),
                consumers,
                Arc::clone(&local),
                shared.warnings.clone(),
            );
            services.add(replayer, &shared.warnings);
        }
    }
    services
}
