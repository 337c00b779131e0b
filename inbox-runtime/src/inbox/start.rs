//! From a builder to an inbox that is ready to run: select, check, connect, subscribe.

use std::{any::TypeId, sync::Arc, time::Duration};

use super::{Inbox, InboxBuilder, Line};
use crate::{
    broker::{self, DynBroker, Subscription},
    check,
    config::{self, Config, Given, Secret},
    error::{Error, StartErrors},
    file::resolve,
    registry::HandlerMeta,
    store::{
        Migrate, Records, StoreSettings,
        detached::Detached,
        kind::{AnyStore, Entry, Kind, Shared, kinds},
    },
    tally::Tally,
};

/// A database that the program uses.
struct Database {
    kind: TypeId,
    name: &'static str,
    store: AnyStore,
    records: Arc<dyn Records>,
}

/// How a database is come by.
enum Origin {
    Given(Box<dyn FnOnce(StoreSettings) -> AnyStore + Send>),
    Url(Given<Secret>),
}

/// A handler that is to run.
struct Planned {
    entry: Box<dyn Entry>,
    /// As it was declared, with what the file says of it in place of its attribute.
    meta: Arc<HandlerMeta>,
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
    let plan = plan(&mut builder, &config, problems)?;

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
    };
    let sources = plan.broker.subscribe(subscriptions(&plan.handlers, ack_wait)).await?;
    let mut lines = Vec::new();
    for (Planned { entry, meta, subject }, source) in plan.handlers.into_iter().zip(sources) {
        let pipeline = databases
            .iter()
            .find_map(|database| entry.pipeline(&meta, &database.store, &shared));
        let Some((runner, trouble)) = pipeline else {
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
        lines.push(Line {
            meta,
            runner,
            source,
            trouble,
        });
    }
    Ok(Inbox {
        lines,
        descriptions,
        tally: shared.tally,
        shutdown_timeout: builder
            .shutdown_timeout
            .or(config.shutdown_timeout)
            .unwrap_or(Duration::from_secs(25)),
        shutdown: builder.shutdown,
        abort: builder.abort,
        next: 0,
    })
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
    broker::connect(&url)
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

/// Finds the database of every selected handler.
fn databases(
    builder: &mut InboxBuilder,
    config: &Config,
    kinds: Vec<Box<dyn Kind>>,
    handlers: &[Planned],
    problems: &mut Vec<String>,
) -> Vec<(Box<dyn Kind>, Origin)> {
    let needs_records = handlers.iter().any(|one| one.entry.store() == TypeId::of::<Detached>());
    let schemes: Vec<_> = kinds.iter().flat_map(|kind| kind.schemes()).copied().collect();
    let mut found = Vec::new();
    for kind in kinds.into_iter().filter(|kind| kind.transactional()) {
        let given = builder.stores.iter().position(|(store, _)| *store == kind.store());
        let url = url_of(&*kind, config);
        let wanted = handlers
            .iter()
            .find(|one| one.entry.store() == kind.store())
            .map(|one| &one.meta);
        match (given, url, wanted) {
            (Some(index), _, _) => found.push((kind, Origin::Given(builder.stores.remove(index).1))),
            (None, Some(url), Some(_)) => found.push((kind, Origin::Url(url))),
            (None, Some(url), None) if needs_records => found.push((kind, Origin::Url(url))),
            (None, None, Some(meta)) => problems.push(no_database(&*kind, meta, config, &schemes)),
            (None, _, None) => {}
        }
    }
    if needs_records && builder.dead_letters.is_none() && found.len() != 1 && problems.is_empty() {
        problems.push(if found.is_empty() {
            "the handlers without a transaction have no database for their dead letters; set DATABASE_URL (for example \
             sqlite://app.db), or add `.store(pool)`"
                .to_owned()
        } else {
            "there are several databases, so say which one keeps the dead letters of the handlers without a transaction: \
             add `.dead_letters(pool)`"
                .to_owned()
        });
    }
    found
}

/// The URL of a kind of database, with the place that has it.
fn url_of(kind: &dyn Kind, config: &Config) -> Option<Given<Secret>> {
    let own = match kind.variable() {
        "INBOX_SQLITE_URL" => config.sqlite_url.clone(),
        "INBOX_POSTGRES_URL" => config.postgres_url.clone(),
        _ => None,
    };
    let shared = config.database_url.clone();
    own.or_else(|| shared.filter(|url| kind.schemes().contains(&scheme(&url.value))))
}

fn no_database(kind: &dyn Kind, meta: &HandlerMeta, config: &Config, schemes: &[&str]) -> String {
    let other = match config.database_url.as_ref().map(|url| scheme(&url.value)) {
        Some(other) if !schemes.contains(&other) => format!(
            " (DATABASE_URL begins with `{other}:`, which this program was not built for; built in: {})",
            schemes.join(", ")
        ),
        Some(other) => format!(" (DATABASE_URL names a `{other}:` database)"),
        None => String::new(),
    };
    format!(
        "handler `{}` ({}) needs a {} database, and there is none{other}; set DATABASE_URL or {} (for example {}), or \
         add `.store(pool)`",
        meta.name,
        meta.place(),
        kind.name(),
        kind.variable(),
        kind.example_url()
    )
}

fn scheme(url: &Secret) -> &str {
    url.0.split_once(':').map_or("", |(scheme, _)| scheme)
}

async fn connect(kind: &dyn Kind, origin: Origin, settings: StoreSettings) -> Result<Database, Error> {
    let store = match origin {
        Origin::Given(make) => make(settings),
        Origin::Url(url) => kind
            .connect(&url.value.0, settings)
            .await
            .map_err(|source| Error::Connect {
                database: url.place,
                source,
            })?,
    };
    let records = kind
        .records(&store)
        .ok_or_else(|| StartErrors::new(vec![format!("the pool given for {} is of another kind", kind.name())]))?;
    Ok(Database {
        kind: kind.store(),
        name: kind.name(),
        store,
        records,
    })
}

fn detached(records: Arc<dyn Records>) -> Database {
    Database {
        kind: TypeId::of::<Detached>(),
        name: "dead letters",
        store: Box::new(Detached::new(records.clone())),
        records,
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
                .max_in_flight(meta.concurrency as usize * 2)
                .timeout(meta.timeout)
                .stream(meta.stream.map(str::to_owned))
                .ordered(meta.ordered)
        })
        .collect()
}
