//! The options of a Kafka client: its URL, librdkafka's properties, and the client configurations made of them.

use std::{collections::BTreeMap, fmt, time::Duration};

use rdkafka::{
    ClientConfig,
    client::{Client, DefaultClientContext},
    error::KafkaError,
    types::RDKafkaType,
};
use tokio::runtime::Handle;

use self::property::Property;
use super::{errors, log, oauth::TokenFunction, properties};
use crate::config::{Given, Secret};

mod broker_list;
mod property;

/// The default of a consumer's prefetch memory, in bytes.
pub(super) const DEFAULT_MEMORY: u64 = 64 << 20;
/// How long a publish takes at most, in milliseconds. librdkafka's default of five minutes is too long to wait for one.
const PUBLISH_TIMEOUT_MS: u64 = 30_000;
/// librdkafka's default of `message.max.bytes`.
const MAX_MESSAGE_BYTES: usize = 1_000_000;
/// The minimum of a consumer's prefetch memory, in bytes.
const MIN_MEMORY: u64 = 1 << 20;

/// The options of Kafka, from the URL, the properties and the builder.
#[derive(Clone, Default)]
pub(super) struct KafkaOptions {
    /// librdkafka's `bootstrap.servers`.
    pub(super) brokers: String,
    /// The prefix of every topic and group.
    pub(super) prefix: String,
    /// Subjects whose topics are created if missing, with their number of partitions.
    pub(super) topics: Vec<(String, i32)>,
    /// The source of tokens for OAUTHBEARER.
    pub(super) token: Option<TokenFunction>,
    /// The runtime that runs it, if it isn't the one on which a client is created.
    pub(super) runtime: Option<Handle>,
    /// The prefetch memory of a consumer, in bytes.
    memory: Option<u64>,
    properties: BTreeMap<String, Property>,
    problems: Vec<String>,
}

impl KafkaOptions {
    pub(super) fn new(brokers: &str) -> Self {
        let mut options = Self::default();
        match broker_list::parse(brokers) {
            Ok(brokers) => options.brokers = brokers,
            Err(problem) => options.problems.push(problem),
        }
        options
    }

    /// The same for a client that is created on another thread.
    pub(super) fn on_this_runtime(&self) -> Self {
        Self {
            runtime: Handle::try_current().ok(),
            ..self.clone()
        }
    }

    /// Parses the URL after `kafka:` or `kafka://`.
    pub(super) fn from_url(rest: &str) -> Self {
        let (brokers, query) = rest.split_once('?').unwrap_or((rest, ""));
        // In the query too: a password may have a question mark. The text isn't repeated, as it may be a password.
        if rest.contains('@') {
            let mut options = Self::default();
            options.problems.push(
                "the broker's URL has a user name; write kafka://host:9092 and set INBOX_KAFKA_SASL_USERNAME and \
                 INBOX_KAFKA_SASL_PASSWORD"
                    .to_owned(),
            );
            return options;
        }
        let mut options = Self::new(brokers.trim_end_matches('/'));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", prefix)) => options.set_prefix(prefix),
                Some(("memory", memory)) => options.set_memory_text(memory),
                // The value isn't repeated, as it may be a password.
                _ => options.problems.push(format!(
                    "the broker's URL has `{}=…`; only prefix=… and memory=… are allowed there; set librdkafka's properties as \
                     in INBOX_KAFKA_SESSION_TIMEOUT_MS=6000",
                    pair.split('=').next().unwrap_or_default()
                )),
            }
        }
        options
    }

    /// Prefixes the problems so far with the place where the URL is set.
    pub(super) fn place_problems(&mut self, place: &str) {
        for problem in &mut self.problems {
            problem.insert_str(0, &format!("{place}: "));
        }
    }

    pub(super) fn set_prefix(&mut self, prefix: &str) {
        match prefix
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && !"._-".contains(*c))
        {
            None => prefix.clone_into(&mut self.prefix),
            Some(c) => self.problems.push(format!(
                "the prefix contains `{}`; letters, digits, `.`, `_` and `-` are allowed, as in staging.",
                c.escape_debug()
            )),
        }
    }

    /// Sets the prefetch memory of a consumer.
    pub(super) fn set_memory(&mut self, bytes: u64) {
        if bytes < MIN_MEMORY {
            self.problems.push(format!(
                "{bytes} bytes of memory are too few for a Kafka consumer; write at least 1MB, as in ?memory=64MB"
            ));
        } else {
            self.memory = Some(bytes);
        }
    }

    fn set_memory_text(&mut self, text: &str) {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "MB" | "MIB" | "M" => Some(1 << 20),
            "GB" | "GIB" | "G" => Some(1 << 30),
            _ => None,
        };
        let number = digits.parse::<u64>().ok();
        match number
            .zip(factor)
            .and_then(|(number, factor)| number.checked_mul(factor))
        {
            Some(bytes) => self.set_memory(bytes),
            None => self.problems.push(
                "the `memory` in the broker's URL can't be read; write a number of megabytes, as in ?memory=64MB"
                    .to_owned(),
            ),
        }
    }

    /// The prefetch memory of a consumer, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.memory.unwrap_or(DEFAULT_MEMORY)
    }

    /// Sets a property in code.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.set_at(name, value, None);
    }

    /// Sets a property from the environment or the settings file.
    pub(super) fn set_given(&mut self, name: &str, given: &Given<Secret>) {
        self.set_at(name, &given.value.0, Some(given.place.clone()));
    }

    fn set_at(&mut self, name: &str, value: &str, place: Option<String>) {
        // An empty value unsets a property, as with environment variables.
        if value.is_empty() {
            self.properties.remove(name);
            return;
        }
        let value = value.to_owned();
        self.properties.insert(name.to_owned(), Property { value, place });
    }

    /// The value of a property, as it was set.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(|property| property.value.as_str())
    }

    /// A text of librdkafka or a broker without the secrets among the properties.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, property) in &self.properties {
            for secret in properties::secrets(name, &property.value) {
                text = text.replace(secret, "[redacted]");
            }
        }
        text
    }

    /// Everything that is wrong, each with what to write instead. Asks no broker.
    pub(super) fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = self.problems.clone();
        let each = self.properties.iter();
        problems.extend(each.filter_map(|(name, property)| property.problem(name)));
        problems.extend(self.conflicts());
        // What librdkafka checks only when a client is created: combinations of properties, mechanisms, files.
        if problems.is_empty()
            && let Err(error) = self.dry_run()
        {
            problems.push(self.redact(&errors::config_error(&error)));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Properties that contradict each other.
    fn conflicts(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let number = |name: &str, default: u64| match self.get(name) {
            Some(text) => text.parse().ok(),
            None => Some(default),
        };
        // librdkafka's own defaults.
        let intervals = number("heartbeat.interval.ms", 3000).zip(number("session.timeout.ms", 45_000));
        if let Some((heartbeat, session)) = intervals
            && heartbeat >= session
        {
            problems.push(format!(
                "the Kafka property `heartbeat.interval.ms` is {heartbeat} and `session.timeout.ms` {session}: a member's \
                 session would expire between two heartbeats; write a heartbeat interval of a third of the session timeout"
            ));
        }
        let mechanism = self.mechanism();
        match (&self.token, mechanism) {
            (Some(_), Some(mechanism)) if !mechanism.eq_ignore_ascii_case("OAUTHBEARER") => problems.push(format!(
                "`oauth_token(…)` is set, but the Kafka property `sasl.mechanism` is {mechanism}; write OAUTHBEARER, or \
                 leave it out"
            )),
            (None, Some(mechanism)) if mechanism.eq_ignore_ascii_case("OAUTHBEARER") && !self.has_builtin_tokens() => {
                problems.push(
                    "the Kafka property `sasl.mechanism` is OAUTHBEARER, but nothing provides tokens; write \
                     `Kafka::new(…).oauth_token(…)` in code"
                        .to_owned(),
                );
            }
            _ => {}
        }
        problems
    }

    fn mechanism(&self) -> Option<&str> {
        self.get("sasl.mechanism").or_else(|| self.get("sasl.mechanisms"))
    }

    /// Whether librdkafka gets the tokens for OAUTHBEARER itself.
    fn has_builtin_tokens(&self) -> bool {
        let is = |name: &str, value: &str| self.get(name).is_some_and(|set| set.eq_ignore_ascii_case(value));
        is("sasl.oauthbearer.method", "oidc") || is("enable.sasl.oauthbearer.unsecure.jwt", "true")
    }

    /// Creates a consumer and both producers without brokers, which connect to none.
    fn dry_run(&self) -> Result<(), KafkaError> {
        // Creating these would fetch a token, or load foreign code.
        if self.has_builtin_tokens() || self.get("plugin.library.paths").is_some() {
            return Ok(());
        }
        for (mut config, kind) in [
            (self.consumer("dry-run"), RDKafkaType::RD_KAFKA_CONSUMER),
            (self.producer(), RDKafkaType::RD_KAFKA_PRODUCER),
            (self.ordered_producer(), RDKafkaType::RD_KAFKA_PRODUCER),
        ] {
            config.remove("bootstrap.servers");
            let native = config.create_native_config()?;
            Client::new(&config, native, kind, DefaultClientContext)?;
        }
        Ok(())
    }

    /// The configuration that consumers and producers share. `role` is the group of a consumer.
    fn base(&self, role: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in properties::DEFAULTS {
            config.set(name, value);
        }
        config.set("client.id", client_id(role));
        if self.token.is_some() {
            config.set("sasl.mechanism", "OAUTHBEARER");
            config.set("security.protocol", "sasl_ssl");
        }
        for (name, property) in &self.properties {
            config.set(name, &property.value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config.set_log_level(log::level());
        config
    }

    /// The configuration of a group's consumer.
    pub(super) fn consumer(&self, group: &str) -> ClientConfig {
        let mut config = self.base(group);
        for (name, value) in properties::CONSUMER {
            config.set(name, value);
        }
        config.set("group.id", group);
        config
    }

    /// The configuration of a producer.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = self.base("inbox-runtime");
        for (name, value) in properties::PRODUCER {
            config.set(name, value);
        }
        if self.get("message.timeout.ms").is_none() && self.get("delivery.timeout.ms").is_none() {
            config.set("message.timeout.ms", PUBLISH_TIMEOUT_MS.to_string());
        }
        // A missing topic is reported before that timeout.
        if self.get("topic.metadata.propagation.max.ms").is_none() {
            config.set("topic.metadata.propagation.max.ms", "10000");
        }
        config.set("statistics.interval.ms", "0");
        config
    }

    /// The configuration of a producer that sends nothing after what it could not send.
    pub(super) fn ordered_producer(&self) -> ClientConfig {
        let mut config = self.producer();
        for alias in properties::ORDERED_PRODUCER_ALIASES {
            config.remove(alias);
        }
        for (name, value) in properties::ORDERED_PRODUCER {
            config.set(name, value);
        }
        config
    }

    /// How long the brokers may take to confirm a message.
    pub(super) fn publish_timeout(&self) -> Duration {
        let set = self
            .get("message.timeout.ms")
            .or_else(|| self.get("delivery.timeout.ms"));
        let millis = set.and_then(|millis| millis.parse().ok());
        Duration::from_millis(millis.unwrap_or(PUBLISH_TIMEOUT_MS))
    }

    /// The largest record that a producer takes, in bytes.
    pub(super) fn max_message_bytes(&self) -> usize {
        let set = self.get("message.max.bytes").and_then(|bytes| bytes.parse().ok());
        set.unwrap_or(MAX_MESSAGE_BYTES)
    }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, property): (&'_ String, &'_ Property)| {
            let shown = properties::is_public(name);
            let value = if shown { &property.value } else { "[redacted]" };
            (name.clone(), value.to_owned())
        };
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("prefix", &self.prefix)
            .field("topics", &self.topics)
            .field("oauth_token", &self.token.is_some())
            .field(
                "properties",
                &self.properties.iter().map(shown).collect::<BTreeMap<_, _>>(),
            )
            .finish_non_exhaustive()
    }
}

/// The name of a client in the brokers' logs and metrics.
fn client_id(role: &str) -> String {
    let host = gethostname::gethostname();
    format!("{role}@{}", host.to_string_lossy())
}

#[cfg(test)]
mod tests;
