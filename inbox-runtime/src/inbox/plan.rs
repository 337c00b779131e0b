//! What is to run on what: decided before anything is connected to, with every problem at once.

use std::{mem, sync::Arc, time::Duration};

use super::{
    InboxBuilder,
    databases::{Database, databases},
};
use crate::{
    broker::{self, DynBroker, Subscription},
    config::{self, Config, Settings},
    error::StartErrors,
    file::resolve,
    handler::{AckStrategy, HandlerMeta},
    inbox::{
        erased::{ErasedRegistration, registrations},
        startup_checks,
    },
    store::{Records, drivers::drivers},
};

/// A handler that is to run.
pub(super) struct Planned {
    pub(super) entry: Box<dyn ErasedRegistration>,
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
    pub(super) settings: Settings,
}

/// Reads the settings and decides what is to run on what, or lists everything that keeps it from running.
pub(super) fn plan(builder: &mut InboxBuilder) -> Result<Plan, StartErrors> {
    let mut problems = Vec::new();
    let config = Config::load(builder.config_file.as_deref(), &mut problems);
    let settings = settings(builder, &config, &mut problems);
    let drivers = drivers();
    let handlers = handlers(builder, &config, &settings, &mut problems);
    let selected: Vec<_> = handlers.iter().map(|one| &*one.meta).collect();
    startup_checks::ack_wait(settings.ack_wait, &mut problems);
    startup_checks::expected(&builder.expected, &selected, &mut problems);
    startup_checks::overlaps(&selected, &mut problems);
    for one in &handlers {
        let transactional = drivers
            .iter()
            .any(|kind| kind.store() == one.entry.store() && kind.transactional());
        startup_checks::one(
            &*one.entry,
            &one.meta,
            &one.subject,
            transactional,
            settings.outbox,
            &builder.states,
            &mut problems,
        );
    }
    let databases = databases(builder, &config, drivers, &settings, &handlers, &mut problems);
    let broker = broker(builder, &config, &settings, &mut problems);
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
            settings,
        }),
        _ => Err(StartErrors::new(problems)),
    }
}

/// What holds: code over environment over file.
fn settings(builder: &mut InboxBuilder, config: &Config, problems: &mut Vec<String>) -> Settings {
    let layer = mem::take(&mut builder.settings).over(config.settings.clone());
    #[cfg(not(feature = "http"))]
    if let Some(config::Given { place, .. }) = &layer.http_addr {
        problems.push(format!(
            "{place}: this program was built without the feature `http`, so it can't serve health; turn the feature on"
        ));
    }
    let mut settings = layer.resolve();
    if let Some(prefix) = &settings.subject_prefix
        && let Err(problem) = config::prefix(&prefix.value)
    {
        problems.push(format!("{}: {problem}", prefix.place));
        settings.subject_prefix = None;
    }
    settings
}

/// The broker that was given, or the one that a URL names.
fn broker(
    builder: &mut InboxBuilder,
    config: &Config,
    settings: &Settings,
    problems: &mut Vec<String>,
) -> Option<DynBroker> {
    if let Some(broker) = builder.broker.take() {
        broker::warn_unused(config, None, "the program gives its broker in code; set them there");
        return Some(broker);
    }
    let Some(url) = &settings.broker_url else {
        problems.push(format!(
            "there is no broker; set INBOX_BROKER_URL (for example {}), or add `.broker(…)`",
            broker::EXAMPLE_URL
        ));
        return None;
    };
    broker::connect(&url.value.0, &url.place, config)
        .map_err(|found| problems.extend(found))
        .ok()
}

/// The selected handlers, in the order of groups, subjects and names, as the file changes them.
fn handlers(
    builder: &mut InboxBuilder,
    config: &Config,
    settings: &Settings,
    problems: &mut Vec<String>,
) -> Vec<Planned> {
    let mut entries = registrations();
    entries.sort_by_key(|entry| (entry.meta().group, entry.meta().subject, entry.meta().name));
    let all: Vec<&'static HandlerMeta> = entries.iter().map(|entry| entry.meta()).collect();
    let groups = &settings.groups;
    startup_checks::groups(groups.as_deref().unwrap_or_default(), &all, problems);
    config.overrides.check(&all, problems);

    let planned = entries.into_iter().map(|entry| {
        let meta = Arc::new(config.overrides.apply(entry.meta()));
        let subject = match &settings.subject_prefix {
            Some(prefix) => format!("{}.{}", prefix.value, meta.subject),
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
    startup_checks::found(all.len(), selected.len(), settings.outbox, problems);
    selected
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
                // For each worker one that it handles, one prefetched, and one that is being settled.
                .max_in_flight(meta.concurrency as usize * 3)
                .timeout(meta.timeout)
                .stream(meta.stream.map(str::to_owned))
                .ordered(meta.ordered)
                .claims(meta.ack == AckStrategy::ExactlyOnce)
        })
        .collect()
}
