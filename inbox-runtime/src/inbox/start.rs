//! From a builder to an inbox that is ready to run: select, check, connect, subscribe.

#[cfg(feature = "http")]
use std::net::SocketAddr;
use std::{any::TypeId, sync::Arc, time::Duration};

use super::{
    Inbox, InboxBuilder, Line,
    databases::{Database, Origin, connect, databases, detached},
    health::{Life, Watched},
};
use crate::{
    broker::{self, DynBroker, DynSource, Subscription},
    check,
    config::{self, Config, Given},
    error::{Error, StartErrors},
    file::resolve,
    pipeline::{Alone, StrandedReplays, worker::Stop},
    registry::HandlerMeta,
    store::{
        Migrate, Records, StoreSettings,
        detached::Detached,
        kind::{Entry, Kind, Shared, kinds},
    },
    tally::Tally,
};

/// A handler that is to run.
pub(super) struct Planned {
    pub(super) entry: Box<dyn Entry>,
    /// As it was declared, with what the file says of it in place of its attribute.
    pub(super) meta: Arc<HandlerMeta>,
    /// What it subscribes to: the declared subject behind the prefix.
    subject: String,
}

struct Plan {
    handlers: Vec<Planned>,
    databases: Vec<(Box<dyn Kind>, Origin)>,
    broker: DynBroker,
}

pub(super) async fn start(mut builder: InboxBuilder) -> Result<Inbox, Error> {
    let mut problems = Vec::new();
    let config = Config::load(builder.config_file.as_deref(), &mut problems);
    let migrate = builder.migrate.or(config.migrate).unwrap_or_default();
    let settings = settings(&builder, &config);
    #[cfg(feature = "http")]
    let addr = http_addr(&builder, &config);
    #[cfg(not(feature = "http"))]
    refuse_http_addr(&config, &mut problems);
    let plan = plan(&mut builder, &config, problems)?;
    #[cfg(feature = "http")]
    let listener = match addr {
        Some(addr) => Some(crate::http::bind(addr).await?),
        None => None,
    };
    #[cfg(all(feature = "metrics", feature = "http"))]
    if builder.prometheus || listener.is_some() {
        // Before the pipelines register what they measure.
        crate::telemetry::prometheus::install();
    }

    let mut databases = Vec::new();
    for (kind, origin) in plan.databases {
        let database = connect(&*kind, origin, settings).await?;
        if let Some(connections) = kind.max_connections(&database.store) {
            let ours = plan.handlers.iter().filter(|one| one.entry.store() == kind.store());
            check::connections(kind.name(), connections, ours.map(|one| &*one.meta))?;
        }
        databases.push(database);
    }
    if let Some(records) = builder.dead_letters.take() {
        let records = records(settings);
        databases.push(detached(records));
    } else if let [only] = &databases[..] {
        let records = only.records.clone();
        databases.push(detached(records));
    }
    let descriptions = prepare(&plan.broker, &databases, migrate).await?;
    let ack_wait = builder.ack_wait.or(config.ack_wait).unwrap_or(Duration::from_secs(30));
    let shared = Shared {
        states: Arc::new(builder.states),
        tally: Arc::new(Tally::default()),
        alone: Alone::default(),
        stranded: StrandedReplays::default(),
    };
    let sources = plan.broker.subscribe(subscriptions(&plan.handlers, ack_wait)).await?;
    let (lines, watched) = lines(plan.handlers, sources, &databases, &shared);
    let stop = Stop::default();
    Ok(Inbox {
        lines,
        descriptions,
        tally: shared.tally,
        life: Life::new(stop.drain.clone(), watched),
        stop,
        #[cfg(feature = "http")]
        listener,
        shutdown_timeout: builder
            .shutdown_timeout
            .or(config.shutdown_timeout)
            .unwrap_or(Duration::from_secs(25)),
        shutdown: builder.shutdown,
        abort: builder.abort,
        next: 0,
    })
}

/// Where health and metrics are to be served.
#[cfg(feature = "http")]
fn http_addr(builder: &InboxBuilder, config: &Config) -> Option<Given<SocketAddr>> {
    let given = builder.http_addr.map(|value| Given {
        value,
        place: "`.http_addr(…)`".to_owned(),
    });
    given.or_else(|| config.http_addr.clone())
}

#[cfg(not(feature = "http"))]
fn refuse_http_addr(config: &Config, problems: &mut Vec<String>) {
    if let Some(Given { place, .. }) = &config.http_addr {
        problems.push(format!(
            "{place}: this program was built without the feature `http`, so it can't serve health; turn the feature on"
        ));
    }
}

/// One line for each handler, and what is to be seen of it while it runs.
fn lines(
    handlers: Vec<Planned>,
    sources: Vec<DynSource>,
    databases: &[Database],
    shared: &Shared,
) -> (Vec<Line>, Vec<Watched>) {
    let (mut lines, mut watched) = (Vec::new(), Vec::new());
    for (Planned { entry, meta, subject }, source) in handlers.into_iter().zip(sources) {
        let pipeline = databases
            .iter()
            .find_map(|database| entry.pipeline(&meta, &database.store, shared));
        let Some((runner, vitals)) = pipeline else {
            // The plan has a database for every entry.
            continue;
        };
        tracing::info!(
            handler = meta.name,
            group = meta.group,
            subject,
            ack = meta.ack.as_str(),
            start = meta.start.as_str(),
            place = meta.place(),
            "a handler is ready"
        );
        watched.push(Watched {
            meta: meta.clone(),
            vitals,
            status: source.status(),
        });
        lines.push(Line { meta, runner, source });
    }
    (lines, watched)
}

fn settings(builder: &InboxBuilder, config: &Config) -> StoreSettings {
    let default = StoreSettings::default();
    StoreSettings {
        lock_wait: builder.lock_wait.or(config.lock_wait).unwrap_or(default.lock_wait),
        pool_size: config.pool_size.unwrap_or(default.pool_size),
        transaction_pooler: builder.transaction_pooler || config.transaction_pooler.unwrap_or_default(),
    }
}

/// Decides what is to run on what, or lists everything that keeps it from running.
fn plan(builder: &mut InboxBuilder, config: &Config, mut problems: Vec<String>) -> Result<Plan, StartErrors> {
    let kinds = kinds();
    let handlers = handlers(builder, config, &kinds, &mut problems);
    let selected: Vec<_> = handlers.iter().map(|one| &*one.meta).collect();
    check::ack_wait(builder.ack_wait, &mut problems);
    check::expected(&builder.expected, &selected, &mut problems);
    check::overlaps(&selected, &mut problems);
    for one in &handlers {
        let transactional = kinds
            .iter()
            .any(|kind| kind.store() == one.entry.store() && kind.transactional());
        check::one(
            &*one.entry,
            &one.meta,
            &one.subject,
            transactional,
            &builder.states,
            &mut problems,
        );
    }

    let databases = databases(builder, config, kinds, &handlers, &mut problems);
    let broker = broker(builder, config, &mut problems);
    match broker {
        Some(broker) if problems.is_empty() => Ok(Plan {
            handlers,
            databases,
            broker,
        }),
        _ => Err(StartErrors::new(problems)),
    }
}

/// The broker that was given, or the one that a URL names.
fn broker(builder: &mut InboxBuilder, config: &Config, problems: &mut Vec<String>) -> Option<DynBroker> {
    if let Some(broker) = builder.broker.take() {
        return Some(broker);
    }
    let url = match builder.broker_url.take() {
        Some(url) => Some((url, "`.broker_url(…)`".to_owned())),
        None => config.broker_url.clone().map(|given| (given.value.0, given.place)),
    };
    let Some((url, place)) = url else {
        problems.push(format!(
            "there is no broker; set INBOX_BROKER_URL (for example {}), or add `.broker(…)`",
            broker::EXAMPLE_URL
        ));
        return None;
    };
    broker::connect(&url, config)
        .map_err(|problem| problems.push(format!("{place}: {problem}")))
        .ok()
}

/// The selected handlers, in the order of groups, subjects and names, as the file changes them.
fn handlers(
    builder: &mut InboxBuilder,
    config: &Config,
    kinds: &[Box<dyn Kind>],
    problems: &mut Vec<String>,
) -> Vec<Planned> {
    let mut entries: Vec<_> = kinds.iter().flat_map(|kind| kind.entries()).collect();
    entries.sort_by_key(|entry| (entry.meta().group, entry.meta().subject, entry.meta().name));
    let all: Vec<&'static HandlerMeta> = entries.iter().map(|entry| entry.meta()).collect();
    let groups = builder.groups.take().or_else(|| config.groups.clone());
    check::groups(groups.as_deref().unwrap_or_default(), &all, problems);
    config.overrides.check(&all, problems);
    let prefix = prefix(builder, config, problems);

    let planned = entries.into_iter().map(|entry| {
        let meta = Arc::new(config.overrides.apply(entry.meta()));
        let subject = match &prefix {
            Some(prefix) => format!("{prefix}.{}", meta.subject),
            None => meta.subject.to_owned(),
        };
        Planned { entry, meta, subject }
    });
    let selected: Vec<_> = planned
        .filter(|one| {
            let group = |groups: &Vec<String>| groups.iter().any(|group| group == one.meta.group);
            groups.as_ref().is_none_or(group) && builder.select.iter().all(|select| select(&one.meta))
        })
        .collect();
    check::found(all.len(), selected.len(), problems);
    selected
}

/// What stands before every subject.
fn prefix(builder: &mut InboxBuilder, config: &Config, problems: &mut Vec<String>) -> Option<String> {
    match builder.subject_prefix.take() {
        Some(prefix) => config::prefix(&prefix)
            .map_err(|problem| problems.push(format!("`.subject_prefix(…)`: {problem}")))
            .ok(),
        None => config.subject_prefix.clone(),
    }
}

/// Makes the tables and asks the broker and the databases what they are: one line each, the broker first.
async fn prepare(broker: &DynBroker, databases: &[Database], migrate: Migrate) -> Result<Vec<String>, Error> {
    // Before either of them opens the file.
    for database in databases {
        refuse_one_file(broker, &*database.records)?;
    }
    let mut descriptions = vec![broker.describe().await?];
    tracing::info!(broker = descriptions[0], "the broker is ready");
    for database in databases {
        let migrated = database.records.migrate(migrate).await;
        migrated.map_err(|source| Error::Migrate {
            database: database.name,
            source,
        })?;
        if database.kind != TypeId::of::<Detached>() {
            let description = database.records.describe().await?;
            tracing::info!(database = description, "the database is ready");
            descriptions.push(description);
        }
    }
    Ok(descriptions)
}

/// A handler's transaction would lock the broker out of the file in which its own lease has to be kept alive.
fn refuse_one_file(broker: &DynBroker, records: &dyn Records) -> Result<(), StartErrors> {
    match (broker.file(), records.file()) {
        (Some(broker), Some(store)) if resolve(&broker) == resolve(&store) => Err(StartErrors::new(vec![format!(
            "the broker and the database are both in {}; give each a file of its own",
            store.display()
        )])),
        _ => Ok(()),
    }
}

fn subscriptions(handlers: &[Planned], ack_wait: Duration) -> Vec<Subscription> {
    handlers
        .iter()
        .map(|Planned { meta, subject, .. }| {
            Subscription::new(meta.group, subject)
                .start(meta.start)
                .ack_wait(ack_wait)
                // For each worker one that it handles, one in hand, and one that is being settled.
                .max_in_flight(meta.concurrency as usize * 3)
                .timeout(meta.timeout)
                .stream(meta.stream.map(str::to_owned))
                .ordered(meta.ordered)
        })
        .collect()
}
