//! Errors of requests to the server, and of binding a source to its consumer.

use std::fmt;

use serde::{Deserialize, de::DeserializeOwned};

use crate::broker::BrokerError;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum RequestError {
    /// No server can be reached, or none answered in time: the request may have been executed.
    NoAnswer(String),
    /// Nobody is subscribed to the subject at the moment.
    NoResponders(String),
    /// The permission to publish to the subject is missing.
    Denied(String),
    /// The payload is larger than the server accepts.
    TooLarge(String),
    /// JetStream answered with an error.
    Api(ApiError),
}

/// The `error` of an answer of the JetStream API.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    /// As the status codes of HTTP.
    pub(super) code: u16,
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    pub(super) description: String,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (err_code {})", self.description, self.err_code)
    }
}

impl RequestError {
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(error) if error.code == 404)
    }
}

impl From<RequestError> for BrokerError {
    fn from(error: RequestError) -> Self {
        let unavailable = |message| Self::Unavailable { message, source: None };
        match error {
            RequestError::NoAnswer(why)
            | RequestError::NoResponders(why)
            | RequestError::Denied(why)
            | RequestError::TooLarge(why) => unavailable(why),
            RequestError::Api(error) if error.code >= 500 => unavailable(format!("the NATS server refused: {error}")),
            RequestError::Api(error) => Self::Invalid(format!("the NATS server refused: {error}")),
        }
    }
}

/// Reads an answer of the JetStream API.
pub(super) fn parse_answer<T: DeserializeOwned>(answer: &[u8]) -> Result<T, RequestError> {
    #[derive(Deserialize)]
    struct Failed {
        error: Option<ApiError>,
    }
    let unreadable = |error: serde_json::Error| RequestError::NoAnswer(format!("an answer can't be read: {error}"));
    if let Some(error) = serde_json::from_slice::<Failed>(answer).map_err(unreadable)?.error {
        return Err(RequestError::Api(error));
    }
    serde_json::from_slice(answer).map_err(unreadable)
}

/// Why a source can't be bound to its consumer.
#[derive(Debug)]
pub(super) enum BindError {
    /// Retried: a server, stream or consumer is not available yet.
    Unavailable(String),
    /// A start error: the stream or consumer exists and can't be used.
    Misconfigured(String),
}

impl From<RequestError> for BindError {
    fn from(error: RequestError) -> Self {
        match BrokerError::from(error) {
            BrokerError::Invalid(why) => Self::Misconfigured(why),
            error => Self::Unavailable(error.to_string()),
        }
    }
}
