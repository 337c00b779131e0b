//! The client library's connection, for API requests, acks and publishing. The library reconnects it; a client whose
//! task has ended is replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, Event, ServerError, connection::State};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    connect_options::{ConnectOptions, is_permanent},
    limits::{CONNECT_TIMEOUT, RECONNECT_BACKOFF},
    permissions::{PermissionViolation, PermissionViolations},
};
use crate::{broker::BrokerError, error_chain::text};

/// Creates the client at first use.
#[derive(Debug)]
pub(super) struct ClientConnection {
    options: ConnectOptions,
    live: Mutex<Option<LiveClient>>,
    /// Held while a client is created.
    connecting: tokio::sync::Mutex<()>,
    events: Arc<ConnectionEvents>,
    /// The number of connects of the replaced clients.
    earlier_connects: AtomicU64,
}

#[derive(Clone, Debug)]
struct LiveClient {
    client: Client,
    /// The library's task has ended, as after a panic in it: the client will never work again.
    ended: Arc<AtomicBool>,
}

/// What the client library's event callback has reported.
#[derive(Debug, Default)]
struct ConnectionEvents {
    /// Grows with each event.
    changes: watch::Sender<u64>,
    connected_once: AtomicBool,
    last_error: Mutex<Option<String>>,
    violations: Mutex<PermissionViolations>,
}

impl ConnectionEvents {
    fn on_event(&self, event: &Event) {
        match event {
            Event::Connected => {
                *self.last_error() = None;
                self.connected_once.store(true, Ordering::SeqCst);
            }
            Event::ClientError(error) => *self.last_error() = Some(error.to_string()),
            // Whoever publishes reports it.
            Event::ServerError(ServerError::Other(error)) if self.violations().record(error) => {}
            Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
            Event::LameDuckMode => tracing::info!("the NATS server is in lame duck mode; reconnecting to another one"),
            _ => {}
        }
        self.notify_changed();
    }

    fn notify_changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn last_error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock()
    }

    fn violations(&self) -> MutexGuard<'_, PermissionViolations> {
        self.violations.lock()
    }
}

/// Owned by the library's task, so dropped when that ends.
struct TaskEndGuard {
    ended: Arc<AtomicBool>,
    events: Arc<ConnectionEvents>,
}

impl Drop for TaskEndGuard {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.events.notify_changed();
    }
}

impl ClientConnection {
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self {
            options,
            live: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            events: Arc::default(),
            earlier_connects: AtomicU64::new(0),
        }
    }

    fn live(&self) -> Option<LiveClient> {
        let live = self.live.lock();
        live.as_ref().filter(|live| !live.ended.load(Ordering::SeqCst)).cloned()
    }

    /// The client, which keeps connecting in the background if no server can be reached now. Fails when the servers
    /// reject the credentials, or a file can't be read.
    async fn client(&self) -> Result<Client, BrokerError> {
        if let Some(live) = self.live() {
            return Ok(live.client);
        }
        let _turn = self.connecting.lock().await;
        if let Some(live) = self.live() {
            return Ok(live.client);
        }
        let live = self.connect().await?;
        let client = live.client.clone();
        let old = self.live.lock().replace(live);
        if let Some(old) = old {
            self.earlier_connects.fetch_add(connects(&old.client), Ordering::SeqCst);
            tracing::warn!("the task of the NATS client library had ended; a new client was created");
        }
        self.events.notify_changed();
        Ok(client)
    }

    async fn connect(&self) -> Result<LiveClient, BrokerError> {
        let addresses = self.options.addresses();
        let deadline = Instant::now() + CONNECT_TIMEOUT * 2;
        let (options, ended) = self.client_options()?;
        let why = match timeout_at(deadline, options.connect(&addresses[..])).await {
            Ok(Ok(client)) => return Ok(LiveClient { client, ended }),
            // Credentials that were accepted once are retried: they may be in the middle of a rotation.
            Ok(Err(error)) if is_permanent(&error) && !self.events.connected_once.load(Ordering::SeqCst) => {
                return Err(BrokerError::Invalid(format!(
                    "the NATS server at {} rejects these credentials: {}",
                    self.options.shown(),
                    text(&error)
                )));
            }
            Ok(Err(error)) => text(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(
            servers = self.options.shown(),
            error = why,
            "no NATS server can be reached; retrying"
        );
        *self.events.last_error() = Some(why);
        let (options, ended) = self.client_options()?;
        let connected = options.retry_on_initial_connect().connect(&addresses[..]).await;
        match connected {
            Ok(client) => Ok(LiveClient { client, ended }),
            Err(error) => Err(BrokerError::Invalid(format!(
                "the URL of NATS can't be used: {}",
                text(&error)
            ))),
        }
    }

    fn client_options(&self) -> Result<(async_nats::ConnectOptions, Arc<AtomicBool>), BrokerError> {
        let options = self.options.client_options().map_err(BrokerError::Invalid)?;
        let (events, delay_events) = (self.events.clone(), self.events.clone());
        let options = options.reconnect_delay_callback(move |attempts| match attempts {
            0 | 1 if !delay_events.connected_once.load(Ordering::SeqCst) => Duration::ZERO,
            attempts => RECONNECT_BACKOFF.bound(u32::try_from(attempts).unwrap_or(u32::MAX)),
        });
        let ended = Arc::new(AtomicBool::new(false));
        let guard = TaskEndGuard {
            ended: ended.clone(),
            events: events.clone(),
        };
        let options = options.event_callback(move |event| {
            let _owned = &guard;
            events.on_event(&event);
            std::future::ready(())
        });
        Ok((options, ended))
    }

    pub(super) fn is_connected(&self) -> bool {
        self.live()
            .is_some_and(|live| live.client.connection_state() == State::Connected)
    }

    /// The client, if it is connected.
    pub(super) async fn connected(&self) -> Result<Client, BrokerError> {
        let client = self.client().await?;
        if client.connection_state() == State::Connected {
            return Ok(client);
        }
        Err(BrokerError::Unavailable {
            message: self.unreachable(),
            source: None,
        })
    }

    /// The largest message that the server accepts, in bytes, headers included; `None` before the first connect.
    pub(super) fn max_payload(&self) -> Option<usize> {
        // The library has an empty `INFO` until it is connected.
        let max = self.live()?.client.server_info().max_payload;
        (max > 0).then_some(max)
    }

    /// The error text while not connected.
    pub(super) fn unreachable(&self) -> String {
        let why = self.events.last_error().clone();
        let why = why.unwrap_or_else(|| "the connection is lost".to_owned());
        format!("no NATS server can be reached at {}: {why}", self.options.shown())
    }

    /// The number of connects so far. It grows before the library reports the new connection.
    pub(super) fn connects(&self) -> u64 {
        let live = self.live.lock();
        self.earlier_connects.load(Ordering::SeqCst) + live.as_ref().map_or(0, |live| connects(&live.client))
    }

    /// Changes at each event: connect, disconnect, permission violation and others.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.events.changes.subscribe()
    }

    /// The server's text why no answers are received, if the inbox can't be subscribed to.
    pub(super) fn inbox_violation(&self) -> Option<String> {
        self.events.violations().any_subscribe().map(str::to_owned)
    }

    /// The last violation for publishing to `subject`.
    pub(super) fn publish_violation(&self, subject: &str) -> Option<PermissionViolation> {
        self.events.violations().publish(subject).cloned()
    }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::SeqCst)
}
