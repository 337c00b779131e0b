//! What is wrong with the consumer of a group, as health and the log have it: the cause in health, and one line for each change.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    Statistics,
    error::{KafkaError, RDKafkaErrorCode},
    statistics::Broker,
};

use super::{
    consumer::{BROKERS, JOINING},
    errors::About,
    events::{self, Events},
    group::Group,
    topics,
};

/// How long a connection must have lasted to count, in microseconds: brokers close one that must not be at once, as one
/// without SASL, after they have answered its first request.
const LASTS: i64 = 2_000_000;
/// How often an error is logged that is about nothing in particular.
const OFTEN: Duration = Duration::from_secs(30);

/// What is known to be wrong, and was logged.
pub(super) struct Faults {
    pub(super) events: Events,
    /// What is wrong with a part of the group's status.
    parts: Mutex<BTreeMap<String, RDKafkaErrorCode>>,
    /// When other errors were logged.
    others: Mutex<BTreeMap<String, Instant>>,
}

impl Faults {
    pub(super) fn new(events: Events) -> Self {
        Self {
            events,
            parts: Mutex::default(),
            others: Mutex::default(),
        }
    }

    /// The consumer has told an error.
    pub(super) fn error(&self, group: &Group, error: &KafkaError, reason: &str) {
        let Some((about, code, text)) = self.events.error(error, reason) else {
            return;
        };
        match about {
            About::Nothing => {}
            _ if events::is_down(about, &text) => self.down(group),
            // One broker of several: what it says is the cause if none answers.
            About::Connection(_) => tracing::debug!(group = group.id, error = text, "a connection to Kafka failed"),
            About::Group => {
                group.wait(JOINING, &format!("it can't be joined: {text}"));
                self.enter(group, JOINING, code, &text);
            }
            // One that names no topic comes with its partition, which has it.
            About::Topic => {
                for line in &group.lines {
                    // As in `Subscribed topic not available: orders: Broker: …`.
                    if text.contains(&format!(" {}: ", topics::topic(&group.prefix, &line.subject))) {
                        line.status.set_blocked(&line.subject, &text);
                        self.enter(group, &line.subject, code, &text);
                    }
                }
            }
            About::Other => self.other(group, code, &text),
        }
    }

    /// Whether the brokers answer, of which librdkafka tells once a second.
    pub(super) fn statistics(&self, group: &Group, statistics: &Statistics) {
        let brokers = || statistics.brokers.values();
        let is_up = |broker: &Broker| broker.state == "UP";
        if brokers().any(|broker| is_up(broker) && broker.stateage >= LASTS) {
            group.go_on(BROKERS);
            if self.events.connection.up() {
                tracing::info!(group = group.id, "Kafka answers again");
            }
        } else if !brokers().any(is_up) && !statistics.brokers.is_empty() {
            if self.events.connection.has_failed() {
                self.down(group);
            } else {
                // It is being connected to, which may take its time.
                group.wait(BROKERS, "no broker answers yet");
            }
        }
    }

    /// What was wrong with a part has passed.
    pub(super) fn passed(&self, group: &Group, part: &str) {
        group.go_on(part);
        if parts(&self.parts).remove(part).is_some() {
            tracing::info!(group = group.id, part, "what kept messages from coming has passed");
        }
    }

    /// Whether it is known what is wrong with a part.
    pub(super) fn has(&self, part: &str) -> bool {
        parts(&self.parts).contains_key(part)
    }

    fn down(&self, group: &Group) {
        let (why, news) = self.events.connection.down();
        group.wait(BROKERS, &why);
        if news {
            tracing::warn!(
                group = group.id,
                why,
                "Kafka doesn't answer; the group goes on when it does"
            );
        }
    }

    fn enter(&self, group: &Group, part: &str, code: RDKafkaErrorCode, why: &str) {
        if parts(&self.parts).insert(part.to_owned(), code) != Some(code) {
            tracing::warn!(group = group.id, part, why, "messages are kept from coming");
        }
    }

    fn other(&self, group: &Group, code: RDKafkaErrorCode, text: &str) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let last = others.insert(code.to_string(), now);
        if last.is_none_or(|last| now.duration_since(last) > OFTEN) {
            tracing::warn!(group = group.id, %code, error = text, "trouble with Kafka");
        } else if let Some(last) = last {
            others.insert(code.to_string(), last);
        }
    }
}

fn parts(parts: &Mutex<BTreeMap<String, RDKafkaErrorCode>>) -> MutexGuard<'_, BTreeMap<String, RDKafkaErrorCode>> {
    parts.lock().unwrap_or_else(PoisonError::into_inner)
}
