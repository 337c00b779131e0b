//! librdkafka's properties: our defaults, values that would break the guarantee, and values that may be shown.
//!
//! The rules cover all of librdkafka's `CONFIGURATION.md`; a property without a rule is the user's choice.

/// The inbox's defaults.
pub(super) const DEFAULTS: [(&str, &str); 4] = [
    // Finds new topics and partitions within seconds.
    ("topic.metadata.refresh.interval.ms", "10000"),
    // Records prefetched per partition; bounds the memory of many partitions.
    ("queued.min.messages", "1000"),
    // Reconnects to a restarted broker within seconds.
    ("reconnect.backoff.max.ms", "2000"),
    // Health and lag are computed from the statistics.
    ("statistics.interval.ms", "1000"),
];

/// Fixed properties of a consumer.
pub(super) const CONSUMER: [(&str, &str); 5] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("enable.partition.eof", "true"),
    ("isolation.level", "read_committed"),
];

/// Fixed properties of a producer.
pub(super) const PRODUCER: [(&str, &str); 4] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("delivery.report.only.error", "false"),
    ("enable.gapless.guarantee", "false"),
];

/// The properties of a producer that sends nothing after what it could not send, which have precedence over the user's.
pub(super) const ORDERED_PRODUCER: [(&str, &str); 4] = [
    ("enable.gapless.guarantee", "true"),
    ("max.in.flight.requests.per.connection", "1"),
    // As often as librdkafka can count.
    ("message.send.max.retries", "2147483647"),
    // Never.
    ("message.timeout.ms", "0"),
];

/// Other names of those.
pub(super) const ORDERED_PRODUCER_ALIASES: [&str; 3] = ["max.in.flight", "retries", "delivery.timeout.ms"];

/// What a property may be set to.
enum Rule {
    /// Nothing.
    Never,
    /// Only these values, which the inbox sets anyway.
    Only(&'static [&'static str]),
    /// Anything but these values.
    Not(&'static [&'static str]),
    /// A number within these bounds, inclusive.
    Between(i64, i64),
}

const BROKERS: &str = "the broker's URL names the brokers, as in kafka://one:9092,two:9092";
const COMMITTED: &str =
    "offsets are committed after the transaction and in no other way, or a crash loses messages; leave it out";
const CONFIRMED: &str = "a confirmed publish must be durable; leave it out";
const HEADERS: &str = "without version negotiation librdkafka uses the protocol of Kafka 0.10, whose records have no headers: message \
                       ids would be lost, and effects duplicated; leave it out";
const FOREVER: &str = "0 means forever: without brokers a publish would never return; write milliseconds, as in 30000";
const OWN: &str = "the inbox sets it; leave it out";
const LOG: &str = "the `tracing` filter sets librdkafka's log level; write for example RUST_LOG=librdkafka=debug";

/// The rules, each with its reason and what to write instead.
const RULES: [(&str, Rule, &str); 39] = [
    ("bootstrap.servers", Rule::Never, BROKERS),
    ("metadata.broker.list", Rule::Never, BROKERS),
    (
        "group.id",
        Rule::Never,
        "each handler's `group` is its group.id; write `group = \"…\"` at the handler",
    ),
    (
        "group.protocol.type",
        Rule::Only(&["consumer"]),
        "librdkafka has no other one; leave it out",
    ),
    ("enable.auto.commit", Rule::Only(&["false"]), COMMITTED),
    ("auto.commit.enable", Rule::Only(&["false"]), COMMITTED),
    ("auto.commit.interval.ms", Rule::Never, COMMITTED),
    ("enable.auto.offset.store", Rule::Only(&["false"]), COMMITTED),
    ("offset.store.method", Rule::Only(&["broker"]), COMMITTED),
    ("offset.store.path", Rule::Never, COMMITTED),
    ("offset.store.sync.interval.ms", Rule::Never, COMMITTED),
    (
        "auto.offset.reset",
        Rule::Never,
        "a handler sets where its group starts; write `start = \"first\"` or `start = \"new\"` there",
    ),
    (
        "isolation.level",
        Rule::Only(&["read_committed"]),
        "messages of aborted transactions would be handled; leave it out",
    ),
    ("enable.partition.eof", Rule::Only(&["true"]), OWN),
    (
        "topic.metadata.refresh.interval.ms",
        Rule::Between(0, 300_000),
        "topics and partitions that are added later would not be found, and their messages never handled; write milliseconds \
         up to 300000",
    ),
    (
        "statistics.interval.ms",
        Rule::Between(1000, 10_000),
        "health and lag are computed from librdkafka's statistics; write milliseconds from 1000 to 10000",
    ),
    ("enable.idempotence", Rule::Only(&["true"]), CONFIRMED),
    ("acks", Rule::Only(&["-1", "all"]), CONFIRMED),
    ("request.required.acks", Rule::Only(&["-1", "all"]), CONFIRMED),
    (
        "delivery.report.only.error",
        Rule::Only(&["false"]),
        "a publish that succeeds would never return; leave it out",
    ),
    (
        "enable.gapless.guarantee",
        Rule::Only(&["false"]),
        "one message that can't be published would end the producer for all; leave it out",
    ),
    ("message.timeout.ms", Rule::Not(&["0"]), FOREVER),
    ("delivery.timeout.ms", Rule::Not(&["0"]), FOREVER),
    (
        "transactional.id",
        Rule::Never,
        "the transaction is the database's; leave it out",
    ),
    ("api.version.request", Rule::Only(&["true"]), HEADERS),
    ("api.version.fallback.ms", Rule::Only(&["0"]), HEADERS),
    ("broker.version.fallback", Rule::Never, HEADERS),
    (
        "log.queue",
        Rule::Never,
        "librdkafka's log goes to `tracing`; leave it out",
    ),
    ("log_level", Rule::Never, LOG),
    ("log.level", Rule::Never, LOG),
    ("enabled_events", Rule::Never, OWN),
    ("enabled.events", Rule::Never, OWN),
    ("opaque", Rule::Never, OWN),
    ("interceptors", Rule::Never, OWN),
    (
        "default_topic_conf",
        Rule::Never,
        "set the topic's properties directly, as in `acks`",
    ),
    ("ssl_key", Rule::Never, "write `ssl.key.location` or `ssl.key.pem`"),
    (
        "ssl_certificate",
        Rule::Never,
        "write `ssl.certificate.location` or `ssl.certificate.pem`",
    ),
    ("ssl_ca", Rule::Never, "write `ssl.ca.location` or `ssl.ca.pem`"),
    (
        "oauthbearer_token_refresh_cb",
        Rule::Never,
        "write `Kafka::oauth_token(…)`",
    ),
];

/// Why a property can't have a value, with what to write instead. `parsed` is the value as librdkafka parses it.
pub(super) fn refusal(name: &str, parsed: &str) -> Option<&'static str> {
    let (_, rule, why) = RULES.iter().find(|(ruled, ..)| *ruled == name)?;
    let is = |values: &[&str]| values.iter().any(|value| value.eq_ignore_ascii_case(parsed));
    let fits = match rule {
        Rule::Never => false,
        Rule::Only(values) => is(values),
        Rule::Not(values) => !is(values),
        Rule::Between(min, max) => parsed.parse().is_ok_and(|number| (*min..=*max).contains(&number)),
    };
    (!fits).then_some(why)
}

/// Whether a property can't be set to any value.
pub(super) fn is_reserved(name: &str) -> bool {
    RULES
        .iter()
        .any(|(ruled, rule, _)| *ruled == name && matches!(rule, Rule::Never))
}

/// Suffixes of names whose values are numbers.
const PUBLIC_SUFFIXES: [&str; 9] = [
    ".ms",
    ".bytes",
    ".kbytes",
    ".messages",
    ".fails",
    ".cnt",
    ".level",
    ".seconds",
    ".max",
];

/// Other properties whose values may be shown. Everything else may be a secret, new properties of librdkafka included.
const PUBLIC: [&str; 42] = [
    "acks",
    "allow.auto.create.topics",
    "auto.offset.reset",
    "batch.size",
    "broker.address.family",
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.type",
    "debug",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.metrics.push",
    "enable.partition.eof",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "enable.ssl.certificate.verification",
    "group.instance.id",
    "group.protocol",
    "group.protocol.type",
    "group.remote.assignor",
    "isolation.level",
    "log.connection.close",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "metadata.recovery.strategy",
    "partition.assignment.strategy",
    "partitioner",
    "queuing.strategy",
    "request.required.acks",
    "retries",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.method",
    "security.protocol",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "ssl.ca.location",
    "ssl.endpoint.identification.algorithm",
];

/// Whether the value of a property may appear in logs, errors and health.
pub(super) fn is_public(name: &str) -> bool {
    PUBLIC.contains(&name) || PUBLIC_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Parts of names whose values are secret or contain a secret.
const SECRET: [&str; 5] = ["password", "passphrase", "secret", ".pem", "oauthbearer.config"];

/// The parts of a value that must be redacted from librdkafka's texts.
pub(super) fn secrets<'a>(name: &str, value: &'a str) -> Vec<&'a str> {
    if !SECRET.iter().any(|secret| name.contains(secret)) {
        return Vec::new();
    }
    // `sasl.oauthbearer.config` has several values, and a text may have just one of them.
    let parts = value.split(char::is_whitespace).flat_map(|part| {
        let inner = part.split_once('=').map(|(_, inner)| inner);
        std::iter::once(part).chain(inner)
    });
    // Shorter ones would redact parts of ordinary words.
    std::iter::once(value)
        .chain(parts)
        .filter(|part| part.len() >= 4)
        .collect()
}

/// The known name that is closest to `name`, if one is close.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    const OTHERS: [&str; 20] = [
        "fetch.max.bytes",
        "fetch.wait.max.ms",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.poll.interval.ms",
        "message.max.bytes",
        "message.timeout.ms",
        "queued.max.messages.kbytes",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.password",
        "sasl.username",
        "session.timeout.ms",
        "socket.timeout.ms",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    ];
    let known = PUBLIC.iter().chain(&OTHERS);
    let distances = known.map(|known| (strsim::damerau_levenshtein(known, name), *known));
    distances
        .min()
        .filter(|(distance, _)| *distance <= 4)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g52_each_rule_says_why() {
        for (name, value) in [
            ("delivery.report.only.error", "true"),
            ("isolation.level", "read_uncommitted"),
            ("enable.auto.commit", "true"),
            ("enable.auto.offset.store", "true"),
            ("auto.offset.reset", "latest"),
            ("group.id", "mine"),
            ("enable.idempotence", "false"),
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("message.timeout.ms", "0"),
            ("delivery.timeout.ms", "0"),
            ("statistics.interval.ms", "0"),
            ("topic.metadata.refresh.interval.ms", "-1"),
            ("api.version.request", "false"),
            ("enable.gapless.guarantee", "true"),
        ] {
            assert!(refusal(name, value).is_some_and(|why| !why.is_empty()), "{name}");
        }
        for (name, value) in [
            ("isolation.level", "read_committed"),
            ("enable.auto.commit", "false"),
            ("enable.idempotence", "true"),
            ("acks", "all"),
            ("acks", "-1"),
            ("message.timeout.ms", "1000"),
            ("session.timeout.ms", "6000"),
        ] {
            assert_eq!(refusal(name, value), None, "{name}");
        }
    }

    #[test]
    fn g54_only_known_public_values_are_shown() {
        for name in [
            "sasl.password",
            "sasl.username",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.key.location",
            "ssl.keystore.password",
            "ssl.ca.pem",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.client.credentials.client.secret",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.assertion.private.key.pem",
            "sasl.oauthbearer.assertion.private.key.file",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.kerberos.kinit.cmd",
            "plugin.library.paths",
            "something.new",
        ] {
            assert!(!is_public(name), "{name}");
        }
        assert!(is_public("session.timeout.ms") && is_public("client.id"));
        assert_eq!(secrets("client.id", "shop"), [""; 0]);
        let parts = secrets("sasl.oauthbearer.config", "principal=alice scope=canary");
        assert!(
            parts.contains(&"canary") && parts.contains(&"scope=canary"),
            "{parts:?}"
        );
    }

    #[test]
    fn a_misspelt_name_has_a_nearest() {
        assert_eq!(nearest("sesion.timeout.ms"), Some("session.timeout.ms"));
        assert_eq!(nearest("sasl.pasword"), Some("sasl.password"));
        assert_eq!(nearest("colour"), None);
    }
}
