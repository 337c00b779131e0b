//! Errors and statistics of a group's consumer, as health and the log show them: the cause in health, one log line per
//! change.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::{
    Statistics,
    error::{KafkaError, RDKafkaErrorCode},
    statistics::Broker,
};

use super::{
    client_events::{self, ClientEvents},
    errors::ErrorScope,
    subscriptions::{BROKERS_PART, GROUP_PART, Subscriptions},
};

/// How long a connection must have lasted to count as up, in microseconds. Brokers answer the first request of a client
/// that may not connect, as one without SASL, and then close the connection.
const MIN_UPTIME_US: i64 = 2_000_000;
/// The minimum time between two log lines of an error that concerns nothing in particular.
const OTHER_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The known errors of a group's consumer.
pub(super) struct GroupHealth {
    pub(super) events: ClientEvents,
    subscriptions: Arc<Subscriptions>,
    /// The error of each blocked part of the group's status.
    blocked: Mutex<BTreeMap<String, RDKafkaErrorCode>>,
    /// When other errors were logged last, by code.
    others_logged: Mutex<BTreeMap<String, Instant>>,
}

impl GroupHealth {
    pub(super) fn new(events: ClientEvents, subscriptions: Arc<Subscriptions>) -> Self {
        Self {
            events,
            subscriptions,
            blocked: Mutex::default(),
            others_logged: Mutex::default(),
        }
    }

    /// The consumer reports an error.
    pub(super) fn on_error(&self, error: &KafkaError, reason: &str) {
        let Some((scope, code, text)) = self.events.error(error, reason) else {
            return;
        };
        let group = &self.subscriptions.group_id;
        match scope {
            ErrorScope::Ignored => {}
            _ if client_events::is_down(scope, &text) => self.mark_down(),
            // One broker of several: reported as the cause if none answers.
            ErrorScope::Connection(_) => tracing::debug!(group, error = text, "a connection to Kafka failed"),
            ErrorScope::Group => {
                self.subscriptions
                    .set_blocked(GROUP_PART, &format!("the group can't be joined: {text}"));
                self.log_blocked(GROUP_PART, code, &text);
            }
            // An error that names no topic is also reported by its partition.
            ErrorScope::Topic => {
                for subscription in self.subscriptions.iter() {
                    // As in `Subscribed topic not available: orders: Broker: …`.
                    if text.contains(&format!(" {}: ", self.subscriptions.topic(subscription))) {
                        subscription.set_blocked(&subscription.subject, &text);
                        self.log_blocked(&subscription.subject, code, &text);
                    }
                }
            }
            ErrorScope::Other => self.log_other(code, &text),
        }
    }

    /// Librdkafka's statistics, once a second, tell whether the brokers answer.
    pub(super) fn on_statistics(&self, statistics: &Statistics) {
        let brokers = || statistics.brokers.values();
        let is_up = |broker: &Broker| broker.state == "UP";
        if brokers().any(|broker| is_up(broker) && broker.stateage >= MIN_UPTIME_US) {
            self.subscriptions.clear_blocked(BROKERS_PART);
            if self.events.reachability.mark_up() {
                tracing::info!(group = self.subscriptions.group_id, "Kafka answers again");
            }
        } else if !brokers().any(is_up) && !statistics.brokers.is_empty() {
            if self.events.reachability.has_failed() {
                self.mark_down();
            } else {
                // Still connecting.
                self.subscriptions.set_blocked(BROKERS_PART, "no broker answers yet");
            }
        }
    }

    /// A part of the status is no longer blocked.
    pub(super) fn clear(&self, part: &str) {
        self.subscriptions.clear_blocked(part);
        if self.lock_blocked().remove(part).is_some() {
            tracing::info!(group = self.subscriptions.group_id, part, "no longer blocked");
        }
    }

    /// Whether the error that blocks a part is known.
    pub(super) fn is_blocked(&self, part: &str) -> bool {
        self.lock_blocked().contains_key(part)
    }

    fn mark_down(&self) {
        let (why, is_new) = self.events.reachability.mark_down();
        self.subscriptions.set_blocked(BROKERS_PART, &why);
        if is_new {
            tracing::warn!(
                group = self.subscriptions.group_id,
                why,
                "Kafka doesn't answer; the group continues when it does"
            );
        }
    }

    fn log_blocked(&self, part: &str, code: RDKafkaErrorCode, why: &str) {
        if self.lock_blocked().insert(part.to_owned(), code) != Some(code) {
            tracing::warn!(
                group = self.subscriptions.group_id,
                part,
                why,
                "blocked: no messages are received"
            );
        }
    }

    fn log_other(&self, code: RDKafkaErrorCode, text: &str) {
        let mut logged = self.others_logged.lock();
        let now = Instant::now();
        let last = logged.get(&code.to_string());
        if last.is_none_or(|last| now.duration_since(*last) > OTHER_LOG_INTERVAL) {
            logged.insert(code.to_string(), now);
            tracing::warn!(group = self.subscriptions.group_id, %code, error = text, "an error of the Kafka consumer");
        }
    }

    fn lock_blocked(&self) -> MutexGuard<'_, BTreeMap<String, RDKafkaErrorCode>> {
        self.blocked.lock()
    }
}
