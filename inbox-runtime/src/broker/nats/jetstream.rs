//! Both connections of a broker, and requests to the JetStream API.

use std::time::Duration;

use async_nats::{
    Client, Message, Request,
    client::{RequestError as ClientError, RequestErrorKind},
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    client_connection::ClientConnection,
    connect_options::ConnectOptions,
    delivery_connection::DeliveryConnection,
    epochs::StreamEpochs,
    error::{RequestError, parse_answer},
    limits::REQUEST_TIMEOUT,
};
use crate::{broker::BrokerError, error_chain::text};

/// What the clones, sources and leases of a broker share.
#[derive(Debug)]
pub(super) struct JetStream {
    pub(super) options: ConnectOptions,
    /// For API requests, acks and publishing.
    pub(super) client: ClientConnection,
    /// For pull requests and deliveries.
    pub(super) deliveries: DeliveryConnection,
    /// Of the streams that were published to.
    pub(super) epochs: StreamEpochs,
}

impl JetStream {
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self {
            client: ClientConnection::new(options.clone()),
            deliveries: DeliveryConnection::new(options.clone()),
            epochs: StreamEpochs::default(),
            options,
        }
    }

    /// Fails unless both connections are up.
    pub(super) async fn connected(&self) -> Result<(), BrokerError> {
        self.client.connected().await?;
        self.deliveries.connected().await
    }

    /// Waits until both connections are up, at most until `deadline`.
    pub(super) async fn wait_connected(&self, deadline: Instant) -> Result<(), BrokerError> {
        let (mut client, mut deliveries) = (self.client.changes(), self.deliveries.changes());
        loop {
            let error = match self.connected().await {
                Ok(()) => return Ok(()),
                Err(error @ BrokerError::Invalid(_)) => return Err(error),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            // Short: the client library drops events when there are many.
            let retry = deadline.min(Instant::now() + Duration::from_millis(500));
            let changed = async {
                tokio::select! {
                    _ = client.changed() => {}
                    _ = deliveries.changed() => {}
                }
            };
            let _ = timeout_at(retry, changed).await;
        }
    }

    /// Sends a request and waits for the answer. Fails at once when the connection is lost or the permission is missing.
    pub(super) async fn send(&self, subject: &str, request: Request) -> Result<Message, RequestError> {
        let client = self.client.connected().await;
        let client = client.map_err(|error| RequestError::NoAnswer(text(&error)))?;
        let answer = tokio::select! {
            answer = client.send_request(subject.to_owned(), request) => answer,
            error = self.request_fails(&client, subject) => return Err(error),
        };
        answer.map_err(|error| self.request_error(&error, subject))
    }

    /// Sends a payload as a request and waits for the answer's payload.
    pub(super) async fn request(
        &self,
        subject: String,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        let request = Request::new().payload(payload).timeout(Some(timeout));
        self.send(&subject, request).await.map(|message| message.payload)
    }

    /// Returns when the current connection is lost, or the server denies publishing to `subject`.
    async fn request_fails(&self, client: &Client, subject: &str) -> RequestError {
        let mut changes = self.client.changes();
        let connects = self.client.connects();
        let before = self
            .client
            .publish_violation(subject)
            .map_or(0, |violation| violation.number);
        loop {
            let violation = self.client.publish_violation(subject);
            if let Some(violation) = violation.filter(|violation| violation.number > before) {
                return RequestError::Denied(publish_denied(&violation.text, subject));
            }
            let connected = client.connection_state() == async_nats::connection::State::Connected;
            if !connected || self.client.connects() != connects || !self.client.is_connected() {
                return RequestError::NoAnswer(self.client.unreachable());
            }
            // It can't fail: `self` owns the sender.
            let _ = changes.changed().await;
        }
    }

    fn request_error(&self, error: &ClientError, subject: &str) -> RequestError {
        match error.kind() {
            RequestErrorKind::NoResponders => RequestError::NoResponders(format!(
                "no responders for `{subject}` on the NATS server at {}: is JetStream enabled, and the subject right?",
                self.options.shown()
            )),
            RequestErrorKind::TimedOut => RequestError::NoAnswer(match self.client.inbox_violation() {
                Some(error) => format!(
                    "no answer of the NATS server at {} can be received: {}",
                    self.options.shown(),
                    inbox_denied(&error)
                ),
                None => format!("the NATS server at {} did not answer in time", self.options.shown()),
            }),
            RequestErrorKind::MaxPayloadExceeded => RequestError::TooLarge(text(error)),
            _ => RequestError::NoAnswer(text(error)),
        }
    }

    /// The subject of an API operation such as `STREAM.NAMES`.
    pub(super) fn api_subject(&self, operation: &str) -> String {
        format!("{}.{operation}", self.options.api_prefix())
    }

    /// Sends a request to the JetStream API.
    pub(super) async fn api<T: DeserializeOwned>(&self, operation: &str, body: &Value) -> Result<T, RequestError> {
        let body = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        let answer = self.request(self.api_subject(operation), body, REQUEST_TIMEOUT).await?;
        parse_answer(&answer)
    }
}

/// The text for a missing permission to publish.
pub(super) fn publish_denied(error: &str, subject: &str) -> String {
    format!("the NATS server reports: {error}; grant this program's user the permission to publish to `{subject}`")
}

/// The text for a missing permission to subscribe to the inbox.
pub(super) fn inbox_denied(error: &str) -> String {
    format!(
        "the NATS server reports: {error}; grant this program's user the permission to subscribe to its inbox, or set \
         `inbox_prefix` to what it may subscribe to"
    )
}
