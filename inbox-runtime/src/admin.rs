//! What an operator does with a database of inboxes, given its URL alone: no broker, no handlers, no running inbox. For
//! command-line tools and dashboards.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), inbox_runtime::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = format!("sqlite://{}?mode=rwc", dir.path().join("app.db").display());
//! # let pool = inbox_runtime::sqlx::SqlitePool::connect(&url).await.unwrap();
//! # inbox_runtime::migrate(&pool).await?;
//! use inbox_runtime::{DeadLetterQuery, admin::Database};
//!
//! let database = Database::open(&url).await?;
//! let letters = database.dead_letters();
//! println!("{}: {} dead letters", database.describe().await?, letters.count(None).await?);
//! for letter in letters.list(DeadLetterQuery::default().group("billing")).await? {
//!     println!("{} {}: {}", letter.id, letter.handler, letter.error);
//!     letters.replay(letter.id).await?;
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```

use std::{fmt, sync::Arc};

use crate::{
    dead_letters::DeadLetters,
    error::Error,
    outbox::OutboxAdmin,
    store::{
        ConnectError, Records, StoreSettings,
        drivers::{StoreDriver, drivers},
    },
    url,
};

/// The databases that can be compiled in, each with the schemes of its URLs and the feature that turns it on.
const FEATURES: &[(&str, &[&str])] = &[("postgres", &["postgres", "postgresql"]), ("sqlite", &["sqlite"])];

/// How many connections an operator's database has: what is asked is asked one after the other.
const CONNECTIONS: u32 = 2;

/// A database of inboxes.
#[derive(Clone)]
pub struct Database {
    name: &'static str,
    records: Arc<dyn Records>,
}

impl Database {
    /// Connects to the database of a URL, as in `postgres://app:…@db/app` or `sqlite://app.db`. Its tables are left as they are:
    /// [`migrate`](crate::migrate) or a running inbox makes them.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`]: the URL can't be read, or names a database that this program was built without, which the text says
    /// with the feature to turn on; or the database refuses, or can't be reached within a few seconds. It is not waited for.
    pub async fn open(url: &str) -> Result<Self, Error> {
        let driver = driver(url)?;
        let refused = |source| Error::Connect {
            database: driver.name().to_owned(),
            source,
        };
        let settings = StoreSettings {
            pool_size: CONNECTIONS,
            ..StoreSettings::default()
        };
        let store = driver.at(url, settings).map_err(refused)?;
        let Some(records) = driver.records(&store) else {
            unreachable!("the driver has made the store");
        };
        records.check_connection().await.map_err(refused)?;
        Ok(Self {
            name: driver.name(),
            records,
        })
    }

    /// The database's name and version, and the settings of it that matter.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when it can't be read.
    pub async fn describe(&self) -> Result<String, Error> {
        Ok(self.records.describe().await?)
    }

    /// Its dead letters: to be listed, counted, replayed and discarded.
    #[must_use]
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.records.clone())
    }

    /// Its outbox: what waits, and what the broker has refused, to be replayed and discarded.
    #[must_use]
    pub fn outbox(&self) -> OutboxAdmin {
        OutboxAdmin::new(self.records.clone())
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The driver of a URL's database. Of the URL only the scheme is shown: the rest may have a password.
fn driver(url: &str) -> Result<Box<dyn StoreDriver>, Error> {
    let scheme = url::scheme(url);
    let found = scheme.and_then(|scheme| drivers().into_iter().find(|driver| driver.schemes().contains(&scheme)));
    found.ok_or_else(|| {
        let feature = FEATURES.iter().find(|(_, schemes)| scheme.is_some_and(|scheme| schemes.contains(&scheme)));
        let why = match (scheme, feature) {
            (Some(scheme), Some((feature, _))) => format!(
                "the URL begins with `{scheme}:`, and this program was built without that database; turn on the feature \
                 `{feature}` of inbox-runtime"
            ),
            (scheme, _) => {
                let begins = scheme.map_or("has no scheme".to_owned(), |scheme| format!("begins with `{scheme}:`"));
                let known: Vec<_> = FEATURES.iter().flat_map(|(_, schemes)| *schemes).copied().collect();
                format!("the URL {begins}, which no database of an inbox has; they are: {}", known.join(", "))
            }
        };
        Error::Connect {
            database: "the database".to_owned(),
            source: ConnectError::Url(why.into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_chain::text;

    /// What an error says of a URL, whatever is compiled in.
    fn problem(url: &str) -> String {
        text(&driver(url).map(|driver| driver.name()).expect_err("no database"))
    }

    #[test]
    fn a_url_of_no_database_is_refused_by_its_scheme_and_the_rest_is_not_shown() {
        for (url, expected) in [
            ("mysql://app:secret@db/app", "begins with `mysql:`"),
            ("app:secret@db/app", "has no scheme"),
            ("", "has no scheme"),
        ] {
            let why = problem(url);
            assert!(why.contains(expected) && why.contains("sqlite"), "{url}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn every_driver_has_its_feature_here_and_a_missing_one_is_named() {
        let compiled: Vec<_> = drivers().iter().flat_map(|driver| driver.schemes()).copied().collect();
        let known: Vec<_> = FEATURES.iter().flat_map(|(_, schemes)| *schemes).copied().collect();
        assert!(compiled.iter().all(|scheme| known.contains(scheme)), "{compiled:?}");
        for (feature, schemes) in FEATURES {
            for scheme in schemes.iter().filter(|scheme| !compiled.contains(scheme)) {
                assert!(problem(&format!("{scheme}://app")).contains(&format!("`{feature}`")));
            }
        }
    }
}
