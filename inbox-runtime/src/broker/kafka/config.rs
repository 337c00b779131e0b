//! How a Kafka client is set up: its URL, the properties of librdkafka, and those of them that are ours.

use std::{collections::BTreeMap, fmt};

use rdkafka::{
    ClientConfig,
    client::{Client, DefaultClientContext},
    error::KafkaError,
    types::RDKafkaType,
};
use tokio::runtime::Handle;

use self::property::Property;
pub(super) use self::property::explain;
use super::{log, memory, properties, token::Token};
use crate::config::{Given, Secret};

mod property;

/// The port of a broker whose address names none.
const PORT: u16 = 9092;

/// Everything that a user says about Kafka.
#[derive(Clone, Default)]
pub(super) struct Settings {
    /// The list of brokers as librdkafka takes it.
    pub(super) brokers: String,
    /// What stands before every topic and every group.
    pub(super) prefix: String,
    /// The subjects whose topics are made if they are missing, with their partitions.
    pub(super) topics: Vec<(String, i32)>,
    /// Where tokens for OAUTHBEARER come from.
    pub(super) token: Option<Token>,
    /// The runtime that makes them, if it isn't the one that a client is made on.
    pub(super) runtime: Option<Handle>,
    /// How many bytes a consumer may keep of what is fetched ahead.
    memory: Option<u64>,
    properties: BTreeMap<String, Property>,
    problems: Vec<String>,
}

impl Settings {
    pub(super) fn new(brokers: &str) -> Self {
        let mut settings = Self::default();
        match hosts(brokers) {
            Ok(brokers) => settings.brokers = brokers,
            Err(problem) => settings.problems.push(problem),
        }
        settings
    }

    /// The same for a client that is made on another thread.
    pub(super) fn on_this_runtime(&self) -> Self {
        Self {
            runtime: Handle::try_current().ok(),
            ..self.clone()
        }
    }

    /// Reads what stands behind `kafka:`.
    pub(super) fn from_url(rest: &str) -> Self {
        let (brokers, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have a question mark.
        if rest.contains('@') {
            // Not repeated in the text: it may be a password.
            let mut settings = Self::default();
            settings.problems.push(
                "the broker's URL has a user; write kafka://host:9092 and set INBOX_KAFKA_SASL_USERNAME and \
                 INBOX_KAFKA_SASL_PASSWORD"
                    .to_owned(),
            );
            return settings;
        }
        let mut settings = Self::new(brokers.trim_end_matches('/'));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", prefix)) => settings.set_prefix(prefix),
                Some(("memory", memory)) => settings.set_memory_text(memory),
                // The value isn't repeated: it may be a password.
                _ => settings.problems.push(format!(
                    "the broker's URL has `{}=…`; only prefix=… and memory=… are known there, and librdkafka's properties are set as \
                     in INBOX_KAFKA_SESSION_TIMEOUT_MS=6000",
                    pair.split('=').next().unwrap_or_default()
                )),
            }
        }
        settings
    }

    /// Says where the URL was found that the problems so far are about.
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

    /// Sets how many bytes a consumer may keep of what is fetched ahead.
    pub(super) fn set_memory(&mut self, bytes: u64) {
        if bytes < memory::LEAST {
            self.problems.push(format!(
                "a Kafka consumer can't do with {bytes} bytes of memory; write at least 1MB, as in ?memory=64MB"
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

    /// How many bytes a consumer may keep of what is fetched ahead.
    pub(super) fn memory(&self) -> u64 {
        self.memory.unwrap_or(memory::DEFAULT)
    }

    /// Sets a property in code.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.set_at(name, value, None);
    }

    /// Sets a property that was found in the environment or in the file.
    pub(super) fn set_given(&mut self, name: &str, given: &Given<Secret>) {
        self.set_at(name, &given.value.0, Some(given.place.clone()));
    }

    fn set_at(&mut self, name: &str, value: &str, place: Option<String>) {
        // As a variable that is set to nothing is unset.
        if value.is_empty() {
            self.properties.remove(name);
            return;
        }
        let value = value.to_owned();
        self.properties.insert(name.to_owned(), Property { value, place });
    }

    /// The value of a property, as it was given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(|property| property.value.as_str())
    }

    /// A text of librdkafka or of a broker without the secrets among the properties.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, property) in &self.properties {
            for secret in properties::secrets(name, &property.value) {
                text = text.replace(secret, "[redacted]");
            }
        }
        text
    }

    /// Everything that is wrong, each with what to write instead.
    pub(super) fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = self.problems.clone();
        let each = self.properties.iter();
        problems.extend(each.filter_map(|(name, property)| property.problem(name)));
        problems.extend(self.disagreements());
        // What librdkafka finds only when a client is made: properties that don't fit together, mechanisms, files.
        if problems.is_empty()
            && let Err(error) = self.trial()
        {
            problems.push(self.redact(&explain(&error)));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Which properties contradict each other.
    fn disagreements(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let number = |name: &str, default: u64| match self.get(name) {
            Some(text) => text.parse().ok(),
            None => Some(default),
        };
        // librdkafka's own defaults.
        let beats = number("heartbeat.interval.ms", 3000).zip(number("session.timeout.ms", 45_000));
        if let Some((heartbeat, session)) = beats
            && heartbeat >= session
        {
            problems.push(format!(
                "the Kafka property `heartbeat.interval.ms` is {heartbeat} and `session.timeout.ms` {session}: a member would \
                 be taken for dead between two heartbeats; write a heartbeat of a third of the session"
            ));
        }
        let mechanism = self.mechanism();
        match (&self.token, mechanism) {
            (Some(_), Some(mechanism)) if !mechanism.eq_ignore_ascii_case("OAUTHBEARER") => problems.push(format!(
                "there is an `oauth_token(…)`, but the Kafka property `sasl.mechanism` is {mechanism}; write OAUTHBEARER, or \
                 leave it out"
            )),
            (None, Some(mechanism)) if mechanism.eq_ignore_ascii_case("OAUTHBEARER") && !self.has_own_tokens() => {
                problems.push(
                    "the Kafka property `sasl.mechanism` is OAUTHBEARER, but nothing makes tokens; write \
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

    /// Whether librdkafka makes the tokens for OAUTHBEARER itself.
    fn has_own_tokens(&self) -> bool {
        let is = |name: &str, value: &str| self.get(name).is_some_and(|set| set.eq_ignore_ascii_case(value));
        is("sasl.oauthbearer.method", "oidc") || is("enable.sasl.oauthbearer.unsecure.jwt", "true")
    }

    /// Makes a consumer and a producer that know no broker, so that they connect to none.
    fn trial(&self) -> Result<(), KafkaError> {
        // Those would fetch a token, and load what is somebody else's.
        if self.has_own_tokens() || self.get("plugin.library.paths").is_some() {
            return Ok(());
        }
        for (mut config, kind) in [
            (self.consumer("trial"), RDKafkaType::RD_KAFKA_CONSUMER),
            (self.producer(), RDKafkaType::RD_KAFKA_PRODUCER),
        ] {
            config.remove("bootstrap.servers");
            let native = config.create_native_config()?;
            Client::new(&config, native, kind, DefaultClientContext)?;
        }
        Ok(())
    }

    /// What consumers and producers have in common. `role` is the group of a consumer.
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
        // Nobody waits five minutes for a confirmation, which is what it would be.
        if self.get("message.timeout.ms").is_none() && self.get("delivery.timeout.ms").is_none() {
            config.set("message.timeout.ms", "30000");
        }
        // A topic that isn't there is an error before that time is over.
        if self.get("topic.metadata.propagation.max.ms").is_none() {
            config.set("topic.metadata.propagation.max.ms", "10000");
        }
        config.set("statistics.interval.ms", "0");
        config
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, property): (&'_ String, &'_ Property)| {
            let shown = properties::may_be_shown(name);
            let value = if shown { &property.value } else { "[redacted]" };
            (name.clone(), value.to_owned())
        };
        f.debug_struct("Settings")
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

/// How the brokers know a client, in their logs and metrics.
fn client_id(role: &str) -> String {
    let host = gethostname::gethostname();
    format!("{role}@{}", host.to_string_lossy())
}

/// Checks a list of brokers, and adds the port where there is none.
fn hosts(list: &str) -> Result<String, String> {
    let mut hosts = Vec::new();
    for (index, host) in list.split(',').map(str::trim).enumerate() {
        // It isn't repeated: what is no address may be a password.
        let wrong = || {
            format!(
                "the broker's URL: its address number {} is none; write hosts and ports as in kafka://one:9092,two:9092",
                index + 1
            )
        };
        // The colons inside brackets are those of an IPv6 address.
        let behind = host.rfind(']').map_or(0, |end| end + 1);
        let (name, port) = match host[behind..].find(':') {
            Some(colon) => host.split_at(behind + colon),
            None => (host, ""),
        };
        let port = match port.strip_prefix(':') {
            None => PORT,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-[]:%".contains(c);
        if name.is_empty() || !name.chars().all(fits) {
            return Err(wrong());
        }
        hosts.push(format!("{name}:{port}"));
    }
    Ok(hosts.join(","))
}

#[cfg(test)]
mod tests;
