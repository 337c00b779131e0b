//! The client library's connection, over which everything is asked and answered: made when it is needed, kept by the
//! library, and made anew when the library's own task has come to its end.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, Event, connection::State};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::config::{CONNECT_TIMEOUT, RECONNECT_BACKOFF, Settings, refuses};
use crate::{broker::BrokerError, error_chain::text};

/// How many subjects are kept that the server has denied, so that a program with many can't fill the memory.
const MAX_DENIED: usize = 256;

#[derive(Debug)]
pub(super) struct Control {
    settings: Settings,
    live: Mutex<Option<Live>>,
    /// One connects at a time.
    connecting: tokio::sync::Mutex<()>,
    news: Arc<News>,
    /// How often the clients before this one were connected.
    before: AtomicU64,
}

#[derive(Clone, Debug)]
struct Live {
    client: Client,
    /// Its task has ended, after a panic of the library for one: nothing would ever come of it again.
    ended: Arc<AtomicBool>,
}

/// What the client library tells about the connection.
#[derive(Debug, Default)]
struct News {
    /// Grows whenever the connection is lost or made, or a right is denied.
    changes: watch::Sender<u64>,
    /// There has been one.
    once: AtomicBool,
    trouble: Mutex<Option<String>>,
    /// Why no answers are heard.
    deaf: Mutex<Option<String>>,
    /// How often a subject was denied, and in which words last.
    denied: Mutex<HashMap<String, (u64, String)>>,
}

impl News {
    fn hear(&self, event: &Event) {
        match event {
            Event::Connected => {
                *self.trouble() = None;
                self.once.store(true, Ordering::SeqCst);
            }
            Event::ClientError(error) => *self.trouble() = Some(error.to_string()),
            Event::ServerError(async_nats::ServerError::Other(error)) => self.hear_error(error),
            Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
            Event::LameDuckMode => tracing::info!("the NATS server is about to stop; another one is looked for"),
            _ => {}
        }
        self.changed();
    }

    /// `Permissions Violation for Publish to "orders.new"` says of which subject it is; whoever asks says what it means.
    fn hear_error(&self, error: &str) {
        if error.starts_with("Permissions Violation for Subscription") {
            *self.deaf.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_owned());
        }
        let denied = error.strip_prefix("Permissions Violation for Publish to \"");
        let Some((subject, _)) = denied.and_then(|rest| rest.split_once('"')) else {
            return tracing::warn!(error, "the NATS server reports an error");
        };
        let mut all = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_DENIED {
            all.clear();
        }
        let (times, words) = all.entry(subject.to_owned()).or_default();
        *times += 1;
        error.clone_into(words);
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropped with the library's task that owns it.
struct EndGuard {
    ended: Arc<AtomicBool>,
    news: Arc<News>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.news.changed();
    }
}

impl Control {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            live: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            news: Arc::default(),
            before: AtomicU64::new(0),
        }
    }

    fn live(&self) -> Option<Live> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| !live.ended.load(Ordering::SeqCst)).cloned()
    }

    /// The client, which connects in the background if no server can be reached now. Fails when the servers refuse us,
    /// or a file that is needed can't be read.
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
        let old = self.live.lock().unwrap_or_else(PoisonError::into_inner).replace(live);
        if let Some(old) = old {
            self.before.fetch_add(connects(&old.client), Ordering::SeqCst);
            tracing::warn!("the NATS client library has come to its end and was started again");
        }
        self.news.changed();
        Ok(client)
    }

    async fn connect(&self) -> Result<Live, BrokerError> {
        let addresses = self.settings.addresses();
        let deadline = Instant::now() + CONNECT_TIMEOUT * 2;
        let (options, ended) = self.options()?;
        let why = match timeout_at(deadline, options.connect(&addresses[..])).await {
            Ok(Ok(client)) => return Ok(Live { client, ended }),
            // What has let us in once may do so again: it may be in the midst of a change.
            Ok(Err(error)) if refuses(&error) && !self.news.once.load(Ordering::SeqCst) => {
                return Err(BrokerError::Invalid(format!(
                    "the NATS server at {} lets nobody in with these credentials: {}",
                    self.settings.shown(),
                    text(&error)
                )));
            }
            Ok(Err(error)) => text(&error),
            Err(_) => "nobody answered in time".to_owned(),
        };
        tracing::warn!(
            servers = self.settings.shown(),
            error = why,
            "no NATS server can be reached; trying again"
        );
        *self.news.trouble() = Some(why);
        let (options, ended) = self.options()?;
        let connected = options.retry_on_initial_connect().connect(&addresses[..]).await;
        match connected {
            Ok(client) => Ok(Live { client, ended }),
            Err(error) => Err(BrokerError::Invalid(format!(
                "the URL of NATS can't be used: {}",
                text(&error)
            ))),
        }
    }

    fn options(&self) -> Result<(async_nats::ConnectOptions, Arc<AtomicBool>), BrokerError> {
        let options = self.settings.options().map_err(BrokerError::Invalid)?;
        let (news, known) = (self.news.clone(), self.news.clone());
        let options = options.reconnect_delay_callback(move |attempts| match attempts {
            0 | 1 if !known.once.load(Ordering::SeqCst) => Duration::ZERO,
            attempts => RECONNECT_BACKOFF.bound(u32::try_from(attempts).unwrap_or(u32::MAX)),
        });
        let ended = Arc::new(AtomicBool::new(false));
        let guard = EndGuard {
            ended: ended.clone(),
            news: news.clone(),
        };
        let options = options.event_callback(move |event| {
            let _owned = &guard;
            news.hear(&event);
            std::future::ready(())
        });
        Ok((options, ended))
    }

    /// Whether there is a connection now.
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

    pub(super) fn unreachable(&self) -> String {
        let why = self
            .news
            .trouble()
            .clone()
            .unwrap_or_else(|| "the connection is lost".to_owned());
        format!("no NATS server can be reached at {}: {why}", self.settings.shown())
    }

    /// How often a connection was made. It has grown before a new connection is known to be there; the news of it comes later.
    pub(super) fn connects(&self) -> u64 {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        self.before.load(Ordering::SeqCst) + live.as_ref().map_or(0, |live| connects(&live.client))
    }

    /// What changes whenever the connection is lost or made, or a right is denied.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.news.changes.subscribe()
    }

    /// Why no answers are heard, if the right to hear them is missing.
    pub(super) fn deaf(&self) -> Option<String> {
        self.news.deaf.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often the server has denied that subject, and in which words last.
    pub(super) fn denied(&self, subject: &str) -> Option<(u64, String)> {
        let all = self.news.denied.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(subject).cloned()
    }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::SeqCst)
}
