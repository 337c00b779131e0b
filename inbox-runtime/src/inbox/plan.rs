//! What is to run on what: decided before anything is connected to, with every problem at once.

#[cfg(feature = "http")]
use std::net::SocketAddr;
use std::{sync::Arc, time::Duration};

use super::{
    InboxBuilder,
    databases::{Database, databases},
};
#[cfg(feature = "http")]
use crate::config::Given;
use crate::{
    broker::{self, DynBroker, Subscription},
    config::{self, Config},
    error::StartErrors,
    file::resolve,
    handler::HandlerMeta,
    inbox::{
        erased::{Entry, Kind, kinds},
        startup_checks,
    },
    store::{MigrateMode, Records, StoreSettings},
};

/// A handler that is to run.
pub(super) struct Planned {
    pub(super) entry: Box<dyn Entry>,
    /// As it was declared, with what the file says of it in place of its attribute.
    pub(super) meta: Arc<HandlerMeta>,
    /// What it subscribes to: the declared subject behind the prefix.
    pub(super) subject: String,
}

/// What is to run on what.
pub(super) struct Plan {
    pub(super) handlers: Vec<Planned>,
    pub(super) databases: Vec<Database>,
    pub(super) broker: DynBroker,
    pub(super) migrate: MigrateMode,
    pub(super) ack_wait: Duration,
    pub(super) stall_after: Duration,
    pub(super) shutdown_timeout: Duration,
    #[cfg(feature = "http")]
    pub(super) http_addr: Option<Given<SocketAddr>>,
}

/// Reads the settings and decides what is to run on what, or lists everything that keeps it from running.
pub(super) fn plan(builder: &mut InboxBuilder) -> Result<Plan, StartErrors> {
    let mut problems = Vec::new();
    let config = Config::load(builder.config_file.as_deref(), &mut problems);
    #[cfg(not(feature = "http"))]
    refuse_http_addr(&config, &mut problems);
    let kinds = kinds();
    let handlers = handlers(builder, &config, &kinds, &mut problems);
    let selected: Vec<_> = handlers.iter().map(|one| &*one.meta).collect();
    startup_checks::ack_wait(builder.ack_wait, &mut problems);
    startup_checks::expected(&builder.expected, &selected, &mut problems);
    startup_checks::overlaps(&selected, &mut problems);
    for one in &handlers {
        let transactional = kinds
            .iter()
            .any(|kind| kind.store() == one.entry.store() && kind.transactional());
        startup_checks::one(
            &*one.entry,
            &one.meta,
            &one.subject,
            transactional,
            &builder.states,
            &mut problems,
        );
    }
    let settings = settings(builder, &config);
    let databases = databases(builder, &config, kinds, settings, &handlers, &mut problems);
    let broker = broker(builder, &config, &mut problems);
    if let Some(broker) = &broker {
        problems.extend(
            databases
                .iter()
                .find_map(|database| one_file(broker, &*database.records)),
        );
    }
    match broker {
        Some(broker) if problems.is_empty() => Ok(Plan {
            handlers,
            databases,
            broker,
            migrate: builder.migrate.or(config.migrate).unwrap_or_default(),
            ack_wait: builder.ack_wait.or(config.ack_wait).unwrap_or(Duration::from_secs(30)),
            stall_after: builder
                .stall_after
                .or(config.stall_after)
                .unwrap_or(Duration::from_secs(60)),
            shutdown_timeout: builder
                .shutdown_timeout
                .or(config.shutdown_timeout)
                .unwrap_or(Duration::from_secs(25)),
            #[cfg(feature = "http")]
            http_addr: http_addr(builder, &config),
        }),
        _ => Err(StartErrors::new(problems)),
    }
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
    if let Some(config::Given { place, .. }) = &config.http_addr {
        problems.push(format!(
            "{place}: this program was built without the feature `http`, so it can't serve health; turn the feature on"
        ));
    }
}

fn settings(builder: &InboxBuilder, config: &Config) -> StoreSettings {
    let default = StoreSettings::default();
    StoreSettings {
        lock_wait: builder.lock_wait.or(config.lock_wait).unwrap_or(default.lock_wait),
        commit_timeout: builder
            .commit_timeout
            .or(config.commit_timeout)
            .unwrap_or(default.commit_timeout),
        pool_size: config.pool_size.unwrap_or(default.pool_size),
        transaction_pooler: builder.transaction_pooler || config.transaction_pooler.unwrap_or_default(),
    }
}

/// The broker that was given, or the one that a URL names.
fn broker(builder: &mut InboxBuilder, config: &Config, problems: &mut Vec<String>) -> Option<DynBroker> {
    if let Some(broker) = builder.broker.take() {
        broker::warn_unused_kafka(
            config,
            "the program gives its broker in code; write `Kafka::property(…)` there",
        );
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
    broker::connect(&url, &place, config)
        .map_err(|found| problems.extend(found))
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
    startup_checks::groups(groups.as_deref().unwrap_or_default(), &all, problems);
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
    startup_checks::found(all.len(), selected.len(), problems);
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

/// A handler's transaction would lock the broker out of the file in which its own lease has to be kept alive.
fn one_file(broker: &DynBroker, records: &dyn Records) -> Option<String> {
    match (broker.file(), records.file()) {
        (Some(broker), Some(store)) if resolve(&broker) == resolve(&store) => Some(format!(
            "the broker and the database are both in {}; give each a file of its own",
            store.display()
        )),
        _ => None,
    }
}

/// What each handler wants of the broker.
pub(super) fn subscriptions(handlers: &[Planned], ack_wait: Duration) -> Vec<Subscription> {
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
