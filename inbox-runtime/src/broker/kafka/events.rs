//! What every Kafka client tells us, whatever it is for: its log, its errors, and that it needs a token.

use std::error::Error as StdError;

use rdkafka::{
    client::OAuthToken,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{
    config::Settings,
    connection::Connection,
    errors::{self, About},
    log,
    token::TokenMaker,
};

/// What one client has told.
pub(super) struct Events {
    settings: Settings,
    tokens: TokenMaker,
    pub(super) connection: Connection,
}

impl Events {
    /// For one client.
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            tokens: TokenMaker::new(settings.token.as_ref(), settings.runtime.as_ref()),
            connection: Connection::default(),
        }
    }

    pub(super) fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log::log(&self.connection, level, facility, &self.settings.redact(message));
    }

    /// What an error is about, with its code, the text without any secret, and what to do.
    pub(super) fn error(&self, error: &KafkaError, reason: &str) -> Option<(About, RDKafkaErrorCode, String)> {
        let code = error.rdkafka_error_code()?;
        let about = errors::about(code);
        if about == About::Nothing {
            return None;
        }
        let reason = self.settings.redact(reason);
        if let About::Connection(weight @ 1..) = about {
            self.connection.failed(weight, code, &reason);
        }
        let reason = errors::lasting(&reason);
        Some((about, code, format!("{reason}{}", errors::advice(code, reason))))
    }

    pub(super) fn token(&self) -> Result<OAuthToken, Box<dyn StdError>> {
        self.tokens
            .make()
            .map_err(|error| self.settings.redact(&error.to_string()).into())
    }
}

/// Whether an error means that no broker can be spoken to: all are down, or there is no token to show them.
pub(super) fn is_down(about: About, text: &str) -> bool {
    match about {
        About::Connection(0) => true,
        About::Connection(_) => text.starts_with("Failed to acquire SASL OAUTHBEARER token"),
        _ => false,
    }
}
