//! What every Kafka client reports, consumer or producer: log lines, errors, and requests for a token.

use std::{error::Error as StdError, sync::Arc};

use rdkafka::{
    ClientContext,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{
    errors::{self, ErrorScope},
    log,
    oauth::TokenSource,
    options::KafkaOptions,
    reachability::Reachability,
};

/// The events of one client.
pub(super) struct ClientEvents {
    options: KafkaOptions,
    tokens: TokenSource,
    pub(super) reachability: Reachability,
}

impl ClientEvents {
    pub(super) fn new(options: &KafkaOptions) -> Self {
        Self {
            options: options.clone(),
            tokens: TokenSource::new(options.token.as_ref(), options.runtime.as_ref()),
            reachability: Reachability::default(),
        }
    }

    pub(super) fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log::log(&self.reachability, level, facility, &self.options.redact(message));
    }

    /// What an error concerns, its code, and its text without secrets and with what to do. `None` if it is to be
    /// ignored.
    pub(super) fn error(&self, error: &KafkaError, reason: &str) -> Option<(ErrorScope, RDKafkaErrorCode, String)> {
        let code = error.rdkafka_error_code()?;
        let scope = errors::scope(code);
        if scope == ErrorScope::Ignored {
            return None;
        }
        let reason = self.options.redact(reason);
        if let ErrorScope::Connection(weight @ 1..) = scope {
            self.reachability.record_failure(weight, code, &reason);
        }
        let reason = errors::without_details(&reason);
        Some((scope, code, format!("{reason}{}", errors::advice(code, reason))))
    }

    pub(super) fn token(&self) -> Result<OAuthToken, Box<dyn StdError>> {
        self.tokens
            .token()
            .map_err(|error| self.options.redact(&error.to_string()).into())
    }
}

/// Whether an error means that no broker can be reached: all are down, or there is no token to authenticate with.
pub(super) fn is_down(scope: ErrorScope, text: &str) -> bool {
    match scope {
        ErrorScope::Connection(0) => true,
        ErrorScope::Connection(_) => text.starts_with("Failed to acquire SASL OAUTHBEARER token"),
        _ => false,
    }
}

/// The callbacks of a producer or an admin client.
pub(super) struct ProducerCallbacks(pub(super) Arc<ClientEvents>);

impl ClientContext for ProducerCallbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    /// Logged once: the error of each publish has it too.
    fn error(&self, error: KafkaError, reason: &str) {
        let Some((scope, _, text)) = self.0.error(&error, reason) else {
            return;
        };
        if is_down(scope, &text) {
            let (why, is_new) = self.0.reachability.mark_down();
            if is_new {
                tracing::warn!(why, "nothing can be published to Kafka");
            }
        } else {
            tracing::debug!(%error, reason = text, "an error of the Kafka producer");
        }
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn StdError>> {
        self.0.token()
    }
}
