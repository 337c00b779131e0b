//! How a database is named, configured and connected to.

use std::{error::Error as StdError, time::Duration};

/// A kind of database: its names, and how a URL becomes a store.
pub trait Connect: Clone + Send + Sync + Sized + 'static {
    /// The database's name in texts, as in `SQLite`.
    const NAME: &'static str;
    /// The environment variable with its URL, for when `DATABASE_URL` names another database.
    const VARIABLE: &'static str;
    /// The schemes of its URLs.
    const SCHEMES: &'static [&'static str];
    /// A URL, for texts that ask for one.
    const EXAMPLE_URL: &'static str;
    /// Whether its handlers have a transaction that carries their effects.
    const TRANSACTIONAL: bool;

    /// The store of the database of that URL. It connects on first use, and so must be called on a runtime of tokio.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Url`] when the URL can't be read.
    fn from_url(url: &str, settings: StoreSettings) -> Result<Self, ConnectError>;

    /// How many connections its pool may have, of which each worker that has messages holds one.
    fn max_connections(&self) -> Option<u32> {
        None
    }
}

/// What a store must know besides its database.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreSettings {
    /// How long a claim waits for another transaction's lock (default 1 s).
    pub lock_wait: Duration,
    /// How long the end of a transaction may take, a commit as well as a rollback (default 15 s). Past it the connection is
    /// closed, and the transaction's outcome is asked on another one.
    pub commit_timeout: Duration,
    /// How many connections a pool that the runtime makes may have (default 10).
    pub pool_size: u32,
    /// Whether a transaction-pooling proxy stands before the database, which shares its connections among programs.
    pub transaction_pooler: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            lock_wait: Duration::from_secs(1),
            commit_timeout: Duration::from_secs(15),
            pool_size: 10,
            transaction_pooler: false,
        }
    }
}

/// Why there is no connection to a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL can't be read.
    #[error("the URL can't be read")]
    Url(#[source] Box<dyn StdError + Send + Sync>),
    /// It answered with what waiting doesn't mend: a wrong password, an unknown role or database, a file that doesn't exist.
    /// The text names the server or the file, and quotes its words.
    #[error("{message}")]
    Refused {
        /// What was refused, why, and what to do.
        message: String,
        /// The answer.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// It can't be reached now: it doesn't run, starts up, doesn't answer. A start waits for it.
    #[error("{message}")]
    Unavailable {
        /// What can't be reached, and why.
        message: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}
