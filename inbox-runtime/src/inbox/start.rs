//! From a builder to an inbox that is ready to run: select, check, connect, subscribe.

use std::{any::TypeId, sync::Arc, time::Duration};

use super::{Inbox, InboxBuilder, Line};
use crate::{
    broker::{self, DynBroker, Subscription},
    check,
    config::Config,
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
    Url { variable: &'static str, url: String },
}

struct Plan {
    entries: Vec<Box<dyn Entry>>,
    databases: Vec<(Box<dyn Kind>, Origin)>,
    broker: DynBroker,
}

pub(super) async fn start(mut builder: InboxBuilder) -> Result<Inbox, Error> {
    let mut problems = Vec::new();
    let config = Config::from_env(&mut problems);
    let migrate = builder.migrate.or(config.migrate).unwrap_or_default();
    let settings = settings(&builder, &config);
    let plan = plan(&mut builder, &config, problems)?;

    let mut databases = Vec::new();
    for (kind, origin) in plan.databases {
        let database = connect(&*kind, origin, settings).await?;
        if let Some(connections) = kind.max_connections(&database.store) {
            let ours = plan.entries.iter().filter(|entry| entry.store() == kind.store());
            check::connections(kind.name(), connections, ours.map(|entry| entry.meta()))?;
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
    let sources = plan.broker.subscribe(subscriptions(&plan.entries, ack_wait)).await?;
    let mut lines = Vec::new();
    for (entry, source) in plan.entries.iter().zip(sources) {
        let pipeline = databases
            .iter()
            .find_map(|database| entry.pipeline(&database.store, &shared));
        let Some((runner, trouble)) = pipeline else {
            // The plan has a database for every entry.
            continue;
        };
        let meta = entry.meta();
        tracing::info!(
            handler = meta.name,
            group = meta.group,
            subject = meta.subject,
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
    let mut entries: Vec<_> = kinds.iter().flat_map(|kind| kind.entries()).collect();
    entries.sort_by_key(|entry| (entry.meta().group, entry.meta().subject, entry.meta().name));
    let all: Vec<&'static HandlerMeta> = entries.iter().map(|entry| entry.meta()).collect();

    let groups = builder.groups.take().or_else(|| config.groups.clone());
    check::groups(groups.as_deref().unwrap_or_default(), &all, &mut problems);
    entries.retain(|entry| {
        let meta = entry.meta();
        groups
            .as_ref()
            .is_none_or(|groups| groups.iter().any(|group| group == meta.group))
            && builder.select.iter().all(|select| select(meta))
    });
    let selected: Vec<_> = entries.iter().map(|entry| entry.meta()).collect();

    check::found(all.len(), selected.len(), &mut problems);
    check::ack_wait(builder.ack_wait, &mut problems);
    check::expected(&builder.expected, &selected, &mut problems);
    check::overlaps(&selected, &mut problems);
    for entry in &entries {
        let transactional = kinds
            .iter()
            .any(|kind| kind.store() == entry.store() && kind.transactional());
        check::one(&**entry, transactional, &builder.states, &mut problems);
    }

    let databases = databases(builder, config, kinds, &entries, &mut problems);
    let broker = match (
        builder.broker.take(),
        builder.broker_url.take().or_else(|| config.broker_url.clone()),
    ) {
        (Some(broker), _) => Some(broker),
        (None, Some(url)) => broker::connect(&url, config)
            .map_err(|problem| problems.push(problem))
            .ok(),
        (None, None) => {
            problems.push(format!(
                "there is no broker; set INBOX_BROKER_URL (for example {}), or add `.broker(…)`",
                broker::EXAMPLE_URL
            ));
            None
        }
    };
    match broker {
        Some(broker) if problems.is_empty() => Ok(Plan {
            entries,
            databases,
            broker,
        }),
        _ => Err(StartErrors::new(problems)),
    }
}

/// Finds the database of every selected handler.
fn databases(
    builder: &mut InboxBuilder,
    config: &Config,
    kinds: Vec<Box<dyn Kind>>,
    entries: &[Box<dyn Entry>],
    problems: &mut Vec<String>,
) -> Vec<(Box<dyn Kind>, Origin)> {
    let needs_records = entries.iter().any(|entry| entry.store() == TypeId::of::<Detached>());
    let schemes: Vec<_> = kinds.iter().flat_map(|kind| kind.schemes()).copied().collect();
    let mut found = Vec::new();
    for kind in kinds.into_iter().filter(|kind| kind.transactional()) {
        let given = builder.stores.iter().position(|(store, _)| *store == kind.store());
        let url = url_of(&*kind, config);
        let wanted = entries
            .iter()
            .filter(|entry| entry.store() == kind.store())
            .map(|entry| entry.meta())
            .next();
        match (given, url, wanted) {
            (Some(index), _, _) => found.push((kind, Origin::Given(builder.stores.remove(index).1))),
            (None, Some((variable, url)), Some(_)) => found.push((kind, Origin::Url { variable, url })),
            (None, Some((variable, url)), None) if needs_records => found.push((kind, Origin::Url { variable, url })),
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

/// The URL of a kind of database, with the variable that has it.
fn url_of(kind: &dyn Kind, config: &Config) -> Option<(&'static str, String)> {
    let own = match kind.variable() {
        "INBOX_SQLITE_URL" => config.sqlite_url.clone(),
        "INBOX_POSTGRES_URL" => config.postgres_url.clone(),
        _ => None,
    };
    let shared = || {
        config
            .database_url
            .clone()
            .filter(|url| kind.schemes().contains(&scheme(url)))
    };
    own.map(|url| (kind.variable(), url))
        .or_else(|| Some(("DATABASE_URL", shared()?)))
}

fn no_database(kind: &dyn Kind, meta: &HandlerMeta, config: &Config, schemes: &[&str]) -> String {
    let other = match config.database_url.as_deref().map(scheme) {
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

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

async fn connect(kind: &dyn Kind, origin: Origin, settings: StoreSettings) -> Result<Database, Error> {
    let store = match origin {
        Origin::Given(make) => make(settings),
        Origin::Url { variable, url } => kind.connect(&url, settings).await.map_err(|source| Error::Connect {
            database: variable.to_owned(),
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

fn subscriptions(entries: &[Box<dyn Entry>], ack_wait: Duration) -> Vec<Subscription> {
    entries
        .iter()
        .map(|entry| {
            let meta = entry.meta();
            Subscription::new(meta.group, meta.subject)
                .start(meta.start)
                .ack_wait(ack_wait)
                .max_in_flight(meta.concurrency as usize * 2)
                .timeout(meta.timeout)
                .stream(meta.stream.map(str::to_owned))
                .ordered(meta.ordered)
        })
        .collect()
}
