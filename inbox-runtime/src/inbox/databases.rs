//! The databases of a program: which the selected handlers need, and where they are.

use std::{any::TypeId, sync::Arc};

use super::{InboxBuilder, plan::Planned};
use crate::{
    config::{Config, DATABASE_URL, Given, Secret, Settings},
    error_chain::text,
    handler::HandlerMeta,
    inbox::startup_checks,
    outbox_mode::OutboxMode,
    store::{
        Records, StoreSettings,
        detached::Detached,
        drivers::{ErasedStore, StoreDriver},
    },
};

/// A database that the program uses.
pub(super) struct Database {
    pub(super) kind: TypeId,
    /// Its name and where it was given, as in `PostgreSQL (DATABASE_URL)`.
    pub(super) label: String,
    pub(super) store: ErasedStore,
    pub(super) records: Arc<dyn Records>,
}

/// How a database is come by.
enum Origin {
    Given(Box<dyn FnOnce(StoreSettings) -> ErasedStore + Send>),
    Url(Given<Secret>),
}

/// The databases of the selected handlers, none of which is connected yet, and that of the dead letters.
pub(super) fn databases(
    builder: &mut InboxBuilder,
    config: &Config,
    drivers: Vec<Box<dyn StoreDriver>>,
    settings: &Settings,
    handlers: &[Planned],
    problems: &mut Vec<String>,
) -> Vec<Database> {
    let mut databases = Vec::new();
    for (kind, origin) in origins(builder, config, drivers, settings.outbox, handlers, problems) {
        let Some(database) = open(&*kind, origin, settings.store)
            .map_err(|problem| problems.push(problem))
            .ok()
        else {
            continue;
        };
        if let Some(connections) = kind.max_connections(&database.store) {
            let ours = handlers.iter().filter(|one| one.entry.store() == kind.store());
            problems.extend(startup_checks::connections(
                kind.name(),
                connections,
                ours.map(|one| &*one.meta),
            ));
        }
        databases.push(database);
    }
    if let Some(records) = builder.dead_letters.take() {
        databases.push(detached(records(settings.store), "`.dead_letters(…)`".to_owned()));
    } else if let [only] = &databases[..] {
        databases.push(detached(only.records.clone(), only.label.clone()));
    }
    databases
}

/// Finds the database of every selected handler.
fn origins(
    builder: &mut InboxBuilder,
    config: &Config,
    drivers: Vec<Box<dyn StoreDriver>>,
    outbox: OutboxMode,
    handlers: &[Planned],
    problems: &mut Vec<String>,
) -> Vec<(Box<dyn StoreDriver>, Origin)> {
    let needs_records = handlers.iter().any(|one| one.entry.store() == TypeId::of::<Detached>());
    let schemes: Vec<_> = drivers.iter().flat_map(|kind| kind.schemes()).copied().collect();
    let mut found = Vec::new();
    for kind in drivers.into_iter().filter(|kind| kind.transactional()) {
        let given = builder.stores.iter().position(|(store, _)| *store == kind.store());
        let url = url_of(&*kind, config);
        let wanted = handlers
            .iter()
            .find(|one| one.entry.store() == kind.store())
            .map(|one| &one.meta);
        match (given, url, wanted) {
            (Some(index), _, _) => found.push((kind, Origin::Given(builder.stores.remove(index).1))),
            (None, Some(url), Some(_)) => found.push((kind, Origin::Url(url))),
            (None, Some(url), None) if needs_records || outbox == OutboxMode::Relay => {
                found.push((kind, Origin::Url(url)));
            }
            (None, None, Some(meta)) => problems.push(no_database(&*kind, meta, config, &schemes)),
            (None, _, None) => {}
        }
    }
    if found.is_empty() && outbox == OutboxMode::Relay && problems.is_empty() {
        problems.push(
            "there is no database whose outbox could be relayed; set DATABASE_URL (for example sqlite://app.db), or add \
             `.store(pool)`"
                .to_owned(),
        );
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
fn url_of(kind: &dyn StoreDriver, config: &Config) -> Option<Given<Secret>> {
    let own = config.database_urls.get(kind.variable()).cloned();
    let shared = config.database_urls.get(DATABASE_URL).cloned();
    own.or_else(|| shared.filter(|url| kind.schemes().contains(&scheme(&url.value))))
}

fn no_database(kind: &dyn StoreDriver, meta: &HandlerMeta, config: &Config, schemes: &[&str]) -> String {
    let shown = |url: &Given<Secret>| crate::url::scheme(&url.value.0).map(str::to_owned);
    let other = match config.database_urls.get(DATABASE_URL).map(shown) {
        Some(None) => " (DATABASE_URL has no scheme)".to_owned(),
        Some(Some(other)) if !schemes.contains(&other.as_str()) => format!(
            " (DATABASE_URL begins with `{other}:`, which this program was not built for; built in: {})",
            schemes.join(", ")
        ),
        Some(Some(other)) => format!(" (DATABASE_URL names a `{other}:` database)"),
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

fn open(kind: &dyn StoreDriver, origin: Origin, settings: StoreSettings) -> Result<Database, String> {
    let (store, place) = match origin {
        Origin::Given(make) => (make(settings), "`.store(…)`".to_owned()),
        Origin::Url(url) => match kind.at(&url.value.0, settings) {
            Ok(store) => (store, url.place),
            Err(error) => {
                return Err(format!(
                    "{}: {}; write for example {}",
                    url.place,
                    text(&error),
                    kind.example_url()
                ));
            }
        },
    };
    let records = kind
        .records(&store)
        .ok_or_else(|| format!("the pool given for {} is of another kind", kind.name()))?;
    Ok(Database {
        kind: kind.store(),
        label: format!("{} ({place})", kind.name()),
        store,
        records,
    })
}

/// Each database once: that of the dead letters is mostly one that is there already.
pub(super) fn distinct(databases: &[Database]) -> impl Iterator<Item = &Database> {
    databases.iter().enumerate().filter_map(|(index, database)| {
        let mut before = databases[..index].iter();
        (!before.any(|other| Arc::ptr_eq(&other.records, &database.records))).then_some(database)
    })
}

fn detached(records: Arc<dyn Records>, label: String) -> Database {
    Database {
        kind: TypeId::of::<Detached>(),
        label,
        store: Box::new(Detached::new(records.clone())),
        records,
    }
}
