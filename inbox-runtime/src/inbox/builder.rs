//! What a program tells the inbox before it starts.

use std::{any::TypeId, fmt, future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use super::{Inbox, InboxHandle, start::Starting};
use crate::{
    broker::{Broker, DynBroker},
    config::{Given, Layer, Secret},
    contain::Contained,
    counters::Report,
    error::Error,
    extract::States,
    handler::HandlerMeta,
    health::{HealthHandle, LifecycleGuard},
    outbox_mode::OutboxMode,
    store::{IntoStore, MigrateMode, Records, Store, StoreSettings, drivers::ErasedStore},
};

pub(super) type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;
type Select = Box<dyn Fn(&HandlerMeta) -> bool + Send>;
type StoreFactory<T> = Box<dyn FnOnce(StoreSettings) -> T + Send>;

/// Sets up an [`Inbox`]. What isn't set here comes from the environment, and what isn't there from `inbox.toml`.
///
/// ```no_run
/// # #[cfg(all(feature = "embedded", feature = "sqlite"))]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use inbox_runtime::{Embedded, Inbox, sqlx::SqlitePool};
///
/// let pool = SqlitePool::connect("sqlite://app.db?mode=rwc").await?;
/// let report = Inbox::builder()
///     .store(pool)
///     .broker(Embedded::file("broker.db"))
///     .groups(["billing"])
///     .shutdown(async { tokio::signal::ctrl_c().await.unwrap_or(()) })
///     .run()
///     .await?;
/// println!("{report}");
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it runs"]
#[derive(Default)]
pub struct InboxBuilder {
    pub(super) stores: Vec<(TypeId, StoreFactory<ErasedStore>)>,
    pub(super) dead_letters: Option<StoreFactory<Arc<dyn Records>>>,
    pub(super) broker: Option<DynBroker>,
    pub(super) states: States,
    pub(super) select: Vec<Select>,
    pub(super) expected: Vec<(String, String)>,
    /// Lies over what the environment and the file set.
    pub(super) settings: Layer,
    pub(super) config_file: Option<PathBuf>,
    #[cfg(all(feature = "metrics", feature = "http"))]
    pub(super) prometheus: bool,
    pub(super) shutdown: Option<Signal>,
    pub(super) abort: Option<Signal>,
    pub(super) life: LifecycleGuard,
}

impl InboxBuilder {
    /// Gives the pool of a database: handlers that take its connection run in its transactions.
    pub fn store<P>(mut self, pool: P) -> Self
    where
        P: IntoStore + Send + 'static,
    {
        let store: StoreFactory<ErasedStore> =
            Box::new(move |settings| Box::new(pool.into_store(settings)) as ErasedStore);
        self.stores.retain(|(kind, _)| *kind != TypeId::of::<P::Store>());
        self.stores.push((TypeId::of::<P::Store>(), store));
        self
    }

    /// Says which database keeps the attempts and dead letters of handlers without a transaction. With one database it
    /// is that one.
    pub fn dead_letters<P>(mut self, pool: P) -> Self
    where
        P: IntoStore + Send + 'static,
    {
        self.dead_letters = Some(Box::new(move |settings| pool.into_store(settings).records()));
        self
    }

    /// Gives the broker.
    pub fn broker(mut self, broker: impl Broker) -> Self {
        self.broker = Some(DynBroker::new(broker));
        self
    }

    /// Names the broker by its URL, as `INBOX_BROKER_URL` does.
    pub fn broker_url(mut self, url: impl Into<String>) -> Self {
        self.settings.broker_url = Some(in_code(Secret(url.into()), "broker_url"));
        self
    }

    /// Gives a value that handlers take as `State<S>`.
    pub fn state<S: Clone + Send + Sync + 'static>(mut self, state: S) -> Self {
        self.states.insert(state);
        self
    }

    /// Runs these groups only, as `INBOX_GROUPS` does. One without a handler is a start error.
    pub fn groups<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.settings.groups = Some(groups.into_iter().map(Into::into).collect());
        self
    }

    /// Runs only the handlers that `select` accepts, of those that the groups leave.
    pub fn select(mut self, select: impl Fn(&HandlerMeta) -> bool + Send + 'static) -> Self {
        self.select.push(Box::new(select));
        self
    }

    /// Makes it a start error when there is no handler of that group for that subject.
    pub fn expect(mut self, group: impl Into<String>, subject: impl Into<String>) -> Self {
        self.expected.push((group.into(), subject.into()));
        self
    }

    /// Says what is done about the tables, as `INBOX_MIGRATE` does (default: they are made).
    pub fn migrate(mut self, migrate: MigrateMode) -> Self {
        self.settings.migrate = Some(migrate);
        self
    }

    /// Sets how long the broker waits for a sign of life before it delivers again, as `INBOX_ACK_WAIT` does (default
    /// 30 s).
    pub fn ack_wait(mut self, ack_wait: Duration) -> Self {
        self.settings.ack_wait = Some(ack_wait);
        self
    }

    /// Sets how long a claim waits for another transaction, as `INBOX_LOCK_WAIT` does (default 1 s). On SQLite a pool
    /// that is given by [`store`](Self::store) keeps its own `busy_timeout`.
    pub fn lock_wait(mut self, lock_wait: Duration) -> Self {
        self.settings.lock_wait = Some(lock_wait);
        self
    }

    /// Sets how long the end of a transaction may take, a commit as well as a rollback, as `INBOX_COMMIT_TIMEOUT` does (default
    /// 15 s). Past it the connection is closed and the outcome asked on another one; a message whose outcome nobody can tell
    /// is neither acknowledged nor counted as failed.
    pub fn commit_timeout(mut self, commit_timeout: Duration) -> Self {
        self.settings.commit_timeout = Some(commit_timeout);
        self
    }

    /// Sets how long a handler may make no progress beyond its own `timeout`, as `INBOX_STALL_AFTER` does (default 1 minute),
    /// before it is not ready, with that as the reason: no message was settled, and the broker gave no answer.
    pub fn stall_after(mut self, stall_after: Duration) -> Self {
        self.settings.stall_after = Some(stall_after);
        self
    }

    /// Says that a transaction-pooling proxy (PgBouncer) stands before PostgreSQL, as `INBOX_TRANSACTION_POOLER` does.
    ///
    /// Then nothing is set on a connection beyond a transaction, and a commit doesn't open the next transaction. A handler
    /// that ends its transaction is still detected, but what it writes afterwards is committed by itself. Each
    /// transaction begins without prepared statements, so that a handler's queries work as they are; what else a program
    /// sends through the pooler is its own affair.
    pub fn transaction_pooler(mut self) -> Self {
        self.settings.transaction_pooler = Some(true);
        self
    }

    /// Sets how long running handlers may take to finish when the inbox is told to stop, as `INBOX_SHUTDOWN_TIMEOUT`
    /// does (default 25 s; zero rolls them back at once). Those that take longer are rolled back and their messages given
    /// back.
    ///
    /// One that blocks its thread can't be rolled back before it returns. Two seconds later it is left behind, and the
    /// inbox ends with [`Error::Blocked`], which names it.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.settings.shutdown_timeout = Some(timeout);
        self
    }

    /// Names the file with settings, as `INBOX_CONFIG` does (default: `inbox.toml`, if it is there). One that is named must
    /// be there.
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.config_file = Some(path.into());
        self
    }

    /// Puts a prefix before the subject of every handler, as `INBOX_SUBJECT_PREFIX` does: with `staging` the handler of
    /// `order.created` gets the messages of `staging.order.created`. The handler sees the subject that the message has.
    pub fn subject_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.subject_prefix = Some(in_code(prefix.into(), "subject_prefix"));
        self
    }

    /// Serves health and metrics there, from before anything is connected to until the inbox has ended, as `INBOX_HTTP_ADDR` does. Port 0 is any free port, which
    /// [`InboxHandle::http_addr`] then has. With the feature `metrics` it also does what `prometheus` does.
    #[cfg(feature = "http")]
    pub fn http_addr(mut self, addr: impl Into<std::net::SocketAddr>) -> Self {
        self.settings.http_addr = Some(in_code(addr.into(), "http_addr"));
        self
    }

    /// Records the metrics of this program for `/metrics` of [`http::router`](crate::http::router). A program that has
    /// installed a recorder of its own keeps that, and a warning says so.
    #[cfg(all(feature = "metrics", feature = "http"))]
    pub fn prometheus(mut self) -> Self {
        self.prometheus = true;
        self
    }

    /// Says which part of the outbox the program takes, as `INBOX_OUTBOX` does (default: [`OutboxMode::Both`]).
    pub fn outbox(mut self, mode: OutboxMode) -> Self {
        self.settings.outbox = Some(mode);
        self
    }

    /// Sets how old the oldest message of the outbox may be before health has a warning that nobody relays it, as
    /// `INBOX_OUTBOX_MAX_AGE` does (default 1 hour).
    pub fn outbox_max_age(mut self, max_age: Duration) -> Self {
        self.settings.outbox_max_age = Some(max_age);
        self
    }

    /// Sets how many messages may wait in the outbox before handlers that publish take no further messages, as
    /// `INBOX_OUTBOX_MAX_PENDING` does (default 1,000,000): a broker that is down must not fill the disk of the database.
    /// They are counted every five seconds.
    pub fn outbox_max_pending(mut self, max_pending: u64) -> Self {
        self.settings.outbox_max_pending = Some(max_pending);
        self
    }

    /// Stops the inbox when that future ends: running handlers finish, everything else is released at once.
    pub fn shutdown(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.shutdown = Some(contained("shutdown", signal));
        self
    }

    pub(crate) fn abort(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.abort = Some(contained("abort", signal));
        self
    }

    /// Looks at the health of the inbox from before it starts: for a program that serves HTTP itself, whose probes must be
    /// answered while the inbox still waits for its database.
    #[must_use]
    pub fn health_handle(&self) -> HealthHandle {
        self.life.handle()
    }

    /// Checks everything, connects and subscribes. Nothing is consumed yet.
    ///
    /// A database that can't be used yet is waited for, as a broker is: it doesn't run, starts up, doesn't answer, is read
    /// only, or its tables are still missing under [`MigrateMode::Off`]. Meanwhile health says why, health and metrics are
    /// served, and the [`shutdown`](Self::shutdown) future is obeyed: then the inbox has no handlers, and ends as soon as it
    /// runs.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] with every problem of what is registered and configured; otherwise the first database or broker that
    /// can't be used for a reason that waiting doesn't mend, such as a wrong password, an unknown database, a missing file, or
    /// tables that are not as they must be.
    ///
    /// # Cancel safety
    ///
    /// Dropped, nothing was consumed; tables that were being made are not there.
    pub async fn build(self) -> Result<Inbox, Error> {
        Starting::new(self).await?.finish().await
    }

    /// Runs until the [`shutdown`](Self::shutdown) future ends (without one, for ever). It ends well and with an empty report
    /// if that is before the inbox has started.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build) and [`Inbox::run`].
    pub async fn run(self) -> Result<Report, Error> {
        self.build().await?.run().await
    }

    /// Runs in the background.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build). When this returns, everything is checked, connected and subscribed; or a database is waited
    /// for, which [`InboxHandle::health`] says, and what turns out to be wrong later is what [`InboxHandle::join`] returns.
    pub async fn spawn(self) -> Result<InboxHandle, Error> {
        let starting = Starting::new(self).await?;
        let (stop, counters, health) = (starting.stop(), starting.counters(), starting.health());
        #[cfg(feature = "http")]
        let http_addr = starting.http_addr();
        let mut start = Box::pin(starting.finish());
        tokio::select! {
            biased;
            started = &mut start => return Ok(started?.spawn()),
            () = health.begins_to_wait() => {}
        }
        Ok(InboxHandle {
            stop,
            task: tokio::spawn(async move { start.await?.run().await }),
            counters,
            health,
            #[cfg(feature = "http")]
            http_addr,
        })
    }
}

impl fmt::Debug for InboxBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxBuilder").finish_non_exhaustive()
    }
}

/// A value that the program sets by that method.
fn in_code<T>(value: T, method: &str) -> Given<T> {
    Given {
        value,
        place: format!("`.{method}(…)`"),
    }
}

/// A future of the program's that says when to stop. One that panics will never say it, so that says it too.
fn contained(what: &'static str, signal: impl Future<Output = ()> + Send + 'static) -> Signal {
    let signal = Contained::new("the future that stops the inbox", Box::pin(signal));
    Box::pin(async move {
        if let Err(panic) = signal.await {
            tracing::error!(error = panic, "the future `{what}` panicked; the inbox stops");
        }
    })
}
