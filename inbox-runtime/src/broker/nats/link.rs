//! The two connections of a broker, and asking the server over one of them.

use std::{fmt, time::Duration};

use async_nats::{
    Client, Message, Request,
    client::{RequestError, RequestErrorKind},
};
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    config::{ANSWER_TIMEOUT, Settings},
    control::Control,
    epochs::Epochs,
    intake::Intake,
};
use crate::{broker::BrokerError, error_chain::text};

/// What the clones, sources and leases of a broker share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) settings: Settings,
    /// Over which is asked, acknowledged and published.
    pub(super) control: Control,
    /// On which deliveries come.
    pub(super) intake: Intake,
    /// Of the streams that were published to.
    pub(super) epochs: Epochs,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// No server can be reached, or none answered in time: it may have been done.
    Unreachable(String),
    /// Nobody listens at that subject now.
    NoResponders(String),
    /// The right to ask is missing.
    Denied(String),
    /// It is more than the server takes.
    TooLarge(String),
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
        let unavailable = |message| Self::Unavailable { message, source: None };
        match unanswered {
            Unanswered::Unreachable(why)
            | Unanswered::NoResponders(why)
            | Unanswered::Denied(why)
            | Unanswered::TooLarge(why) => unavailable(why),
            Unanswered::Refused(refusal) if refusal.code >= 500 => {
                unavailable(format!("the NATS server refused: {refusal}"))
            }
            Unanswered::Refused(refusal) => Self::Invalid(format!("the NATS server refused: {refusal}")),
        }
    }
}

impl Link {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            control: Control::new(settings.clone()),
            intake: Intake::new(settings.clone()),
            epochs: Epochs::default(),
            settings,
        }
    }

    /// Fails unless both connections are there.
    pub(super) async fn connected(&self) -> Result<(), BrokerError> {
        self.control.connected().await?;
        self.intake.connected().await
    }

    /// Waits until both connections are there, at most until `deadline`.
    pub(super) async fn wait_connected(&self, deadline: Instant) -> Result<(), BrokerError> {
        let (mut control, mut intake) = (self.control.changes(), self.intake.changes());
        loop {
            let error = match self.connected().await {
                Ok(()) => return Ok(()),
                Err(error @ BrokerError::Invalid(_)) => return Err(error),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            // An event may be lost in a crowd of them, so the wait is short.
            let look = deadline.min(Instant::now() + Duration::from_millis(500));
            let changed = async {
                tokio::select! {
                    _ = control.changed() => {}
                    _ = intake.changed() => {}
                }
            };
            let _ = timeout_at(look, changed).await;
        }
    }

    /// Asks and waits for the answer; a connection that is lost in between ends the wait, and a missing right does.
    pub(super) async fn request(&self, subject: &str, request: Request) -> Result<Message, Unanswered> {
        let client = self.control.connected().await;
        let client = client.map_err(|error| Unanswered::Unreachable(text(&error)))?;
        let answer = tokio::select! {
            answer = client.send_request(subject.to_owned(), request) => answer,
            why = self.in_vain(&client, subject) => return Err(why),
        };
        answer.map_err(|error| self.why(&error, subject))
    }

    pub(super) async fn ask_within(
        &self,
        subject: String,
        payload: Bytes,
        wait: Duration,
    ) -> Result<Bytes, Unanswered> {
        let request = Request::new().payload(payload).timeout(Some(wait));
        self.request(&subject, request).await.map(|message| message.payload)
    }

    /// Returns when the connection is lost that there is now, or the server denies the subject.
    async fn in_vain(&self, client: &Client, subject: &str) -> Unanswered {
        let mut changes = self.control.changes();
        let connects = self.control.connects();
        let before = self.control.denied(subject).map_or(0, |(times, _)| times);
        loop {
            if let Some((times, words)) = self.control.denied(subject)
                && times > before
            {
                return Unanswered::Denied(format!(
                    "the NATS server denies it: {words}; give this program's user the right to publish to `{subject}`"
                ));
            }
            let connected = client.connection_state() == async_nats::connection::State::Connected;
            if !connected || self.control.connects() != connects || !self.control.is_connected() {
                return Unanswered::Unreachable(self.control.unreachable());
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    fn why(&self, error: &RequestError, subject: &str) -> Unanswered {
        match error.kind() {
            RequestErrorKind::NoResponders => Unanswered::NoResponders(format!(
                "nobody answers at `{subject}` on the NATS server at {}: is JetStream on, and what was asked there?",
                self.settings.shown()
            )),
            RequestErrorKind::TimedOut => Unanswered::Unreachable(match self.control.deaf() {
                Some(words) => format!(
                    "no answer of the NATS server at {} can be heard: {words}; give this program's user the right to subscribe \
                     to its inbox, or set `inbox_prefix` to what it may subscribe to",
                    self.settings.shown()
                ),
                None => format!("the NATS server at {} did not answer in time", self.settings.shown()),
            }),
            RequestErrorKind::MaxPayloadExceeded => Unanswered::TooLarge(text(error)),
            _ => Unanswered::Unreachable(text(error)),
        }
    }

    /// The subject of a question to JetStream's own interface.
    pub(super) fn api_subject(&self, question: &str) -> String {
        format!("{}.{question}", self.settings.api_prefix())
    }

    /// Asks JetStream's own interface.
    pub(super) async fn api<T: DeserializeOwned>(&self, question: &str, body: &Value) -> Result<T, Unanswered> {
        let body = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        let answer = self
            .ask_within(self.api_subject(question), body, ANSWER_TIMEOUT)
            .await?;
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
