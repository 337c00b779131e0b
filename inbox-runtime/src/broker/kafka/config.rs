//! How a Kafka client is set up: its URL, the properties of librdkafka, and those of them that are ours.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;

use super::memory;

/// The port of a broker whose address names none.
const PORT: u16 = 9092;

/// What the inbox sets unless it is told otherwise.
const DEFAULTS: [(&str, &str); 5] = [
    ("client.id", "inbox-runtime"),
    // New topics and partitions are found within seconds.
    ("topic.metadata.refresh.interval.ms", "10000"),
    // What is fetched ahead, for each partition: enough to go on with, and memory that a hundred partitions can have.
    ("queued.min.messages", "1000"),
    // A broker that is back is found within seconds.
    ("reconnect.backoff.max.ms", "2000"),
    // Health and lag come from them.
    ("statistics.interval.ms", "1000"),
];

/// What a consumer of the inbox is, whatever it is told.
const CONSUMER: [(&str, &str); 4] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("enable.partition.eof", "true"),
];

/// What a producer of the inbox is.
const PRODUCER: [(&str, &str); 1] = [("enable.idempotence", "true")];

/// The properties that can't be set, with the reason and what to write instead.
const RESERVED: [(&str, &str); 16] = [
    ("bootstrap.servers", BROKERS),
    ("metadata.broker.list", BROKERS),
    (
        "group.id",
        "each handler's `group` is its group.id; write `group = \"…\"` at the handler",
    ),
    ("enable.auto.commit", COMMITTED),
    ("auto.commit.interval.ms", COMMITTED),
    ("auto.commit.enable", COMMITTED),
    ("enable.auto.offset.store", COMMITTED),
    ("offset.store.method", COMMITTED),
    (
        "auto.offset.reset",
        "a group begins where its handler says; write `start = \"first\"` or `start = \"new\"` there",
    ),
    ("enable.partition.eof", "the inbox uses it itself; leave it out"),
    ("enable.idempotence", CONFIRMED),
    ("acks", CONFIRMED),
    ("request.required.acks", CONFIRMED),
    ("transactional.id", "the transaction is the database's; leave it out"),
    ("log.queue", "librdkafka's log goes to `tracing`; leave it out"),
    ("opaque", "the inbox uses it itself; leave it out"),
];
const BROKERS: &str = "the broker's URL names the brokers, as in kafka://one:9092,two:9092";
const COMMITTED: &str =
    "an offset is committed after the transaction, and by nothing else, or a crash loses messages; leave it out";
const CONFIRMED: &str = "what is published is there for good when that is confirmed; leave it out";

/// Everything that a user says about Kafka.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// The list of brokers as librdkafka takes it.
    pub(super) brokers: String,
    /// What stands before every topic and every group.
    pub(super) prefix: String,
    /// The subjects whose topics are made if they are missing, with their partitions.
    pub(super) topics: Vec<(String, i32)>,
    /// How many bytes a consumer may keep of what is fetched ahead.
    memory: Option<u64>,
    properties: BTreeMap<String, String>,
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

    /// Reads what stands behind `kafka:`.
    pub(super) fn from_url(rest: &str) -> Self {
        let (brokers, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut settings = if brokers.contains('@') {
            // Not repeated in the text: it may be a password.
            let mut settings = Self::default();
            settings.problems.push(
                "the broker's URL has a user; write kafka://host:9092 and set INBOX_KAFKA_SASL_USERNAME and \
                 INBOX_KAFKA_SASL_PASSWORD"
                    .to_owned(),
            );
            settings
        } else {
            Self::new(brokers.trim_end_matches('/'))
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", prefix)) => settings.set_prefix(prefix),
                Some(("memory", memory)) => settings.set_memory_text(memory),
                _ => settings.problems.push(format!(
                    "the broker's URL has `{pair}`; only prefix=… is known there, and librdkafka's properties are set as \
                     in INBOX_KAFKA_SESSION_TIMEOUT_MS=6000"
                )),
            }
        }
        settings
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
            None => self.problems.push(format!(
                "the broker's URL has memory={text}; write a number of megabytes, as in ?memory=64MB"
            )),
        }
    }

    /// How many bytes a consumer may keep of what is fetched ahead.
    pub(super) fn memory(&self) -> u64 {
        self.memory.unwrap_or(memory::DEFAULT)
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        match RESERVED.iter().find(|(reserved, _)| *reserved == name) {
            Some((_, why)) => self
                .problems
                .push(format!("the Kafka property `{name}` can't be set: {why}")),
            // As a variable that is set to nothing is unset.
            None if value.is_empty() => {
                self.properties.remove(name);
            }
            None => {
                self.properties.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    /// The value of a property, as it was given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// Everything that is wrong, each with what to write instead.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut problems = self.problems.clone();
        if problems.is_empty()
            && let Err(error) = self.base().create_native_config()
        {
            problems.push(explain(&error.to_string()));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems.join("; "))
        }
    }

    fn base(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in DEFAULTS {
            config.set(name, value);
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    /// The configuration of a group's consumer.
    pub(super) fn consumer(&self, group: &str) -> ClientConfig {
        let mut config = self.base();
        for (name, value) in CONSUMER {
            config.set(name, value);
        }
        config.set("group.id", group);
        config
    }

    /// The configuration of a producer.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = self.base();
        for (name, value) in PRODUCER {
            config.set(name, value);
        }
        // Nobody waits five minutes for a confirmation, which is what it would be.
        if self.get("message.timeout.ms").is_none() && self.get("delivery.timeout.ms").is_none() {
            config.set("message.timeout.ms", "30000");
        }
        config.set("statistics.interval.ms", "0");
        config
    }
}

/// librdkafka's word on a property, with what it can't know.
fn explain(error: &str) -> String {
    let hint = if error.contains("not supported in this build") && error.contains("SSL") {
        "; turn on the feature `kafka-ssl`"
    } else {
        ""
    };
    format!("a Kafka property can't be used: {error}{hint}")
}

/// Checks a list of brokers, and adds the port where there is none.
fn hosts(list: &str) -> Result<String, String> {
    let mut hosts = Vec::new();
    for host in list.split(',').map(str::trim) {
        let wrong =
            || format!("`{host}` is no address of a broker; write hosts and ports as in kafka://one:9092,two:9092");
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
mod tests {
    use super::*;

    #[test]
    fn a_list_of_brokers_is_read() {
        for (url, expected) in [
            ("one:9093", "one:9093"),
            ("one", "one:9092"),
            ("one:1,two:2", "one:1,two:2"),
            ("one:1, two/", "one:1,two:9092"),
            ("[::1]:9093,127.0.0.1", "[::1]:9093,127.0.0.1:9092"),
        ] {
            let settings = Settings::from_url(url);
            assert_eq!(settings.brokers, expected, "{url}");
            assert_eq!(settings.check(), Ok(()), "{url}");
        }
    }

    #[test]
    fn a_wrong_url_says_what_to_write() {
        for (url, expected) in [
            ("", "kafka://one:9092"),
            ("one:", "kafka://one:9092"),
            ("one:0", "kafka://one:9092"),
            ("one:99999", "kafka://one:9092"),
            ("one,,two", "kafka://one:9092"),
            ("one:9092/topic", "kafka://one:9092"),
            ("user:secret@one:9092", "INBOX_KAFKA_SASL_USERNAME"),
            ("one?topic=x", "prefix"),
            ("one?prefix=a/b", "staging."),
        ] {
            let problem = Settings::from_url(url).check().expect_err(url);
            assert!(problem.contains(expected), "{url}: {problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[test]
    fn a_prefix_can_stand_in_the_url() {
        let settings = Settings::from_url("one:1?prefix=staging.");
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(
            (settings.brokers.as_str(), settings.prefix.as_str()),
            ("one:1", "staging.")
        );
    }

    #[test]
    fn f61_what_would_break_the_guarantee_is_refused_by_name() {
        for (name, _) in RESERVED {
            let mut settings = Settings::new("one");
            settings.set(name, "true");
            let problem = settings.check().expect_err(name);
            assert!(problem.contains(&format!("`{name}`")), "{problem}");
        }
    }

    #[test]
    fn other_properties_reach_librdkafka() {
        let mut settings = Settings::new("one");
        settings.set("session.timeout.ms", "6000");
        settings.set("client.id", "mine");
        assert_eq!(settings.check(), Ok(()));
        let config = settings.consumer("billing");
        assert_eq!(config.get("session.timeout.ms"), Some("6000"));
        assert_eq!(config.get("client.id"), Some("mine"));
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(settings.producer().get("enable.idempotence"), Some("true"));
    }

    #[test]
    fn what_librdkafka_does_not_know_is_refused_with_its_name() {
        for (name, value) in [("sesion.timeout.ms", "6000"), ("session.timeout.ms", "soon")] {
            let mut settings = Settings::new("one");
            settings.set(name, value);
            let problem = settings.check().expect_err(name);
            assert!(problem.contains(name), "{problem}");
        }
    }
}
