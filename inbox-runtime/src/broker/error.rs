//! What goes wrong with a broker, by what the caller can do about it.

use std::error::Error as StdError;

use crate::error_chain::text;

/// Trouble with the broker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The broker can't be used now; it is tried again.
    #[error("the broker is not available: {message}")]
    Unavailable {
        /// What was tried.
        message: String,
        /// Why it failed.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The broker refuses this message and would again: it is too large, or its subject, key or a header is not allowed.
    #[error("the broker refused the message: {message}")]
    Refused {
        /// What it refused, and what to do instead.
        message: String,
        /// The broker's own words.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The right to publish to the message's subject is missing, which somebody may grant.
    #[error("the broker denies the message: {message}")]
    Denied {
        /// What it denies, and which right is missing.
        message: String,
        /// The broker's own words.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The broker can't take the message now, though it answers: its stream has no leader, or is full and discards nothing.
    #[error("the broker can't take the message now: {message}")]
    NotNow {
        /// What was tried.
        message: String,
        /// The broker's own words.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The lease of a delivery has passed on: the message was delivered to somebody else again, or is settled.
    #[error("the lease of {position} has passed on: the message was delivered again, or is settled")]
    LeaseLost {
        /// Where the broker keeps the message.
        position: String,
    },
    /// What was asked is wrong and stays wrong.
    #[error("{0}")]
    Invalid(String),
    /// The broker's client has come to its end, as when somebody else has taken its place: only a new start helps. A running
    /// inbox finishes what it has fetched and ends with this.
    #[error("{0}")]
    Ended(String),
}

impl BrokerError {
    /// A failure that may pass.
    #[must_use]
    pub fn unavailable(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Unavailable {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A message that the broker doesn't take and never will.
    #[must_use]
    pub fn refused(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Refused {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A message whose subject may not be published to.
    #[must_use]
    pub fn denied(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Denied {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A message that the broker may take later.
    #[must_use]
    pub fn not_now(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::NotNow {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// An error of the same kind and with the same words, for another message that it concerns as well.
    pub(crate) fn copied(&self) -> Self {
        let with_cause = |message: &str, source: &Option<Box<dyn StdError + Send + Sync>>| match source {
            Some(source) => format!("{message}: {}", text(&**source)),
            None => message.to_owned(),
        };
        match self {
            Self::Unavailable { message, source } => Self::Unavailable {
                message: with_cause(message, source),
                source: None,
            },
            Self::Refused { message, source } => Self::Refused {
                message: with_cause(message, source),
                source: None,
            },
            Self::Denied { message, source } => Self::Denied {
                message: with_cause(message, source),
                source: None,
            },
            Self::NotNow { message, source } => Self::NotNow {
                message: with_cause(message, source),
                source: None,
            },
            Self::LeaseLost { position } => Self::LeaseLost {
                position: position.clone(),
            },
            Self::Invalid(message) => Self::Invalid(message.clone()),
            Self::Ended(message) => Self::Ended(message.clone()),
        }
    }
}
