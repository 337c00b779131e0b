//! The connection to the servers: made when it is needed, kept by the client library, asked by everybody.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, Event, Request,
    client::{RequestError, RequestErrorKind},
    connection::State,
};
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    sync::{OnceCell, watch},
    time::{Instant, timeout_at},
};

use super::config::{self, ANSWER_TIMEOUT, CONNECT_TIMEOUT, RECONNECT_BACKOFF, Settings};
use crate::{broker::BrokerError, pipeline::text};

/// The connection that the clones, sources and leases of a broker share.
pub(super) struct Link {
    pub(super) settings: Settings,
    client: OnceCell<Client>,
    news: Arc<News>,
}

/// What the client library tells about the connection.
#[derive(Debug, Default)]
struct News {
    /// Grows whenever the connection is lost or made.
    changes: watch::Sender<u64>,
    /// There has been one.
    once: AtomicBool,
    trouble: Mutex<Option<String>>,
}

impl News {
    fn hear(&self, event: &Event) {
        match event {
            Event::Connected => {
                *self.trouble() = None;
                self.once.store(true, Ordering::SeqCst);
            }
            Event::ClientError(error) => *self.trouble() = Some(error.to_string()),
            Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
            Event::LameDuckMode => tracing::info!("the NATS server is about to stop; another one is looked for"),
            _ => {}
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nobody answered.
    Unreachable(String),
    /// The server refused.
    Refused(Refusal),
}

/// The server's word against a request.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    /// As HTTP has them.
    pub(super) code: u16,
    /// The server's own code.
    #[serde(default, rename = "err_code")]
    pub(super) error: u64,
    #[serde(default)]
    pub(super) description: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (error {} of the server)", self.description, self.error)
    }
}

impl Unanswered {
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == 404)
    }
}

impl From<Unanswered> for BrokerError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Unreachable(why) => Self::Unavailable {
                message: why,
                source: None,
            },
            Unanswered::Refused(refusal) if refusal.code >= 500 => Self::Unavailable {
                message: format!("the NATS server refused: {refusal}"),
                source: None,
            },
            Unanswered::Refused(refusal) => Self::Invalid(format!("the NATS server refused: {refusal}")),
        }
    }
}

impl Link {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            client: OnceCell::new(),
            news: Arc::default(),
        }
    }

    /// The client, which connects in the background if no server can be reached now. Fails when the servers refuse us,
    /// or a file that is needed can't be read.
    pub(super) async fn client(&self) -> Result<&Client, BrokerError> {
        self.client.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Client, BrokerError> {
        let addresses = self.settings.addresses();
        let deadline = Instant::now() + CONNECT_TIMEOUT * 2;
        let why = match timeout_at(deadline, self.options()?.connect(&addresses[..])).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) if config::refuses(&error) => {
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
        let options = self.options()?.retry_on_initial_connect();
        let connected = options.connect(&addresses[..]).await;
        connected.map_err(|error| BrokerError::Invalid(format!("the URL of NATS can't be used: {}", text(&error))))
    }

    fn options(&self) -> Result<async_nats::ConnectOptions, BrokerError> {
        let options = self.settings.options().map_err(BrokerError::Invalid)?;
        let (news, known) = (self.news.clone(), self.news.clone());
        let options = options.reconnect_delay_callback(move |attempts| match attempts {
            0 | 1 if !known.once.load(Ordering::SeqCst) => Duration::ZERO,
            attempts => RECONNECT_BACKOFF.bound(u32::try_from(attempts).unwrap_or(u32::MAX)),
        });
        Ok(options.event_callback(move |event| {
            news.hear(&event);
            std::future::ready(())
        }))
    }

    /// Whether there is a connection now.
    pub(super) fn is_connected(&self) -> bool {
        let client = self.client.get();
        client.is_some_and(|client| client.connection_state() == State::Connected)
    }

    /// The client, if it is connected.
    pub(super) async fn connected(&self) -> Result<&Client, BrokerError> {
        let client = self.client().await?;
        if client.connection_state() == State::Connected {
            return Ok(client);
        }
        Err(BrokerError::Unavailable {
            message: self.unreachable(),
            source: None,
        })
    }

    fn unreachable(&self) -> String {
        let why = self
            .news
            .trouble()
            .clone()
            .unwrap_or_else(|| "the connection is lost".to_owned());
        format!("no NATS server can be reached at {}: {why}", self.settings.shown())
    }

    /// How often a connection was made. It has grown before a new connection is known to be there; the news of it comes later.
    pub(super) fn connects(&self) -> u64 {
        let client = self.client.get();
        client.map_or(0, |client| client.statistics().connects.load(Ordering::SeqCst))
    }

    /// What changes whenever the connection is lost or made.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.news.changes.subscribe()
    }

    /// Waits until there is a connection, at most until `deadline`.
    pub(super) async fn wait_connected(&self, deadline: Instant) -> Result<&Client, BrokerError> {
        let mut changes = self.changes();
        loop {
            let error = match self.connected().await {
                Ok(client) => return Ok(client),
                Err(error @ BrokerError::Invalid(_)) => return Err(error),
                Err(error) => error,
            };
            // The sender lives as long as this. An event may be lost in a crowd of them, so the wait is short.
            let look = deadline.min(Instant::now() + Duration::from_millis(500));
            let _ = timeout_at(look, changes.changed()).await;
            if Instant::now() >= deadline {
                return match self.connected().await {
                    Ok(client) => Ok(client),
                    Err(_) => Err(error),
                };
            }
        }
    }

    /// Asks and waits for the answer; a connection that is lost in between ends the wait.
    pub(super) async fn ask(&self, subject: String, payload: Bytes) -> Result<Bytes, Unanswered> {
        self.ask_within(subject, payload, ANSWER_TIMEOUT).await
    }

    pub(super) async fn ask_within(
        &self,
        subject: String,
        payload: Bytes,
        wait: Duration,
    ) -> Result<Bytes, Unanswered> {
        let client = self
            .connected()
            .await
            .map_err(|error| Unanswered::Unreachable(text(&error)))?;
        let request = Request::new().payload(payload).timeout(Some(wait));
        let answer = tokio::select! {
            answer = client.send_request(subject, request) => answer,
            () = self.lost(client) => return Err(Unanswered::Unreachable(self.unreachable())),
        };
        answer
            .map(|message| message.payload)
            .map_err(|error| Unanswered::Unreachable(self.why(&error)))
    }

    /// Returns when the connection is lost that there is now.
    async fn lost(&self, client: &Client) {
        let mut changes = self.changes();
        let connects = self.connects();
        while client.connection_state() == State::Connected && self.connects() == connects {
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    fn why(&self, error: &RequestError) -> String {
        match error.kind() {
            RequestErrorKind::NoResponders => {
                format!(
                    "nobody answers at {}: is JetStream on, and the durable there?",
                    self.settings.shown()
                )
            }
            RequestErrorKind::TimedOut => {
                format!("the NATS server at {} did not answer in time", self.settings.shown())
            }
            _ => text(error),
        }
    }

    /// Asks JetStream's own interface.
    pub(super) async fn api<T: DeserializeOwned>(&self, question: &str, body: &Value) -> Result<T, Unanswered> {
        let body = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        let answer = self.ask(format!("$JS.API.{question}"), body).await?;
        read_answer(&answer)
    }
}

/// An answer of JetStream's own interface.
pub(super) fn read_answer<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Unanswered> {
    #[derive(Deserialize)]
    struct Failed {
        error: Option<Refusal>,
    }
    let unreadable = |error: serde_json::Error| Unanswered::Unreachable(format!("an answer can't be read: {error}"));
    if let Some(refusal) = serde_json::from_slice::<Failed>(answer).map_err(unreadable)?.error {
        return Err(Unanswered::Refused(refusal));
    }
    serde_json::from_slice(answer).map_err(unreadable)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
