//! librdkafka's properties: those that can't be set, the values that would break the guarantee, and the values that may be shown.
//!
//! The rules follow librdkafka's `CONFIGURATION.md` from its first line to its last; what is not here is the user's to choose.

/// What the inbox sets unless it is told otherwise.
pub(super) const DEFAULTS: [(&str, &str); 4] = [
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
pub(super) const CONSUMER: [(&str, &str); 5] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("enable.partition.eof", "true"),
    ("isolation.level", "read_committed"),
];

/// What a producer of the inbox is, whatever it is told.
pub(super) const PRODUCER: [(&str, &str); 4] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("delivery.report.only.error", "false"),
    ("enable.gapless.guarantee", "false"),
];

/// What may be said about a property.
enum Rule {
    /// It can't be set at all.
    Never,
    /// It can be set to this only, which it is anyway.
    Only(&'static [&'static str]),
    /// It can be set to anything but this.
    Not(&'static [&'static str]),
    /// It can be set to a number from this to that.
    Between(i64, i64),
}

const BROKERS: &str = "the broker's URL names the brokers, as in kafka://one:9092,two:9092";
const COMMITTED: &str =
    "an offset is committed after the transaction, and by nothing else, or a crash loses messages; leave it out";
const CONFIRMED: &str = "what is published is there for good when that is confirmed; leave it out";
const HEADERS: &str = "without the broker's own version librdkafka speaks that of Kafka 0.10, whose records have no headers: the \
                       message ids would be missing, and effects doubled; leave it out";
const FOREVER: &str = "0 is for ever: without brokers a publish would never return; write milliseconds, as in 30000";
const OWN: &str = "the inbox uses it itself; leave it out";
const LOG: &str =
    "librdkafka logs as much as the filter of `tracing` lets through; write RUST_LOG=librdkafka=debug or the like";

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
        "it is the only one that librdkafka has; leave it out",
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
        "a group begins where its handler says; write `start = \"first\"` or `start = \"new\"` there",
    ),
    (
        "isolation.level",
        Rule::Only(&["read_committed"]),
        "messages of transactions that were aborted would be handled; leave it out",
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
        "health and lag come from librdkafka's statistics; write milliseconds from 1000 to 10000",
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
        "one message that can't be published would end the producer for all others; leave it out",
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
        "write the topic's properties as they are, as in `acks`",
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

/// Why a property can't be set to a value, with what to write instead; `taken` is what librdkafka makes of the value.
pub(super) fn refusal(name: &str, taken: &str) -> Option<&'static str> {
    let (_, rule, why) = RULES.iter().find(|(ruled, ..)| *ruled == name)?;
    let is = |values: &[&str]| values.iter().any(|value| value.eq_ignore_ascii_case(taken));
    let fits = match rule {
        Rule::Never => false,
        Rule::Only(values) => is(values),
        Rule::Not(values) => !is(values),
        Rule::Between(least, most) => taken.parse().is_ok_and(|number| (*least..=*most).contains(&number)),
    };
    (!fits).then_some(why)
}

/// Whether a property can't be set, whatever the value.
pub(super) fn is_reserved(name: &str) -> bool {
    RULES
        .iter()
        .any(|(ruled, rule, _)| *ruled == name && matches!(rule, Rule::Never))
}

/// The ends of names whose values are numbers of something.
const HARMLESS_ENDS: [&str; 9] = [
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

/// Other properties whose values may be shown. Everything else may be a secret, whoever adds it to librdkafka.
const HARMLESS: [&str; 42] = [
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

/// Whether the value of a property may be shown in texts.
pub(super) fn may_be_shown(name: &str) -> bool {
    HARMLESS.contains(&name) || HARMLESS_ENDS.iter().any(|end| name.ends_with(end))
}

/// The properties of which a secret is a part of the value.
const SECRET: [&str; 5] = ["password", "passphrase", "secret", ".pem", "oauthbearer.config"];

/// What must not be repeated of a value, whatever librdkafka says about it.
pub(super) fn secrets<'a>(name: &str, value: &'a str) -> Vec<&'a str> {
    if !SECRET.iter().any(|secret| name.contains(secret)) {
        return Vec::new();
    }
    // `sasl.oauthbearer.config` has several values in one, and a text may have one of them only.
    let parts = value.split(char::is_whitespace).flat_map(|part| {
        let inner = part.split_once('=').map(|(_, inner)| inner);
        std::iter::once(part).chain(inner)
    });
    // Shorter ones would take pieces out of ordinary words.
    std::iter::once(value)
        .chain(parts)
        .filter(|part| part.len() >= 4)
        .collect()
}

/// The known name that looks most like `name`, if one looks like it.
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
    let known = HARMLESS.iter().chain(&OTHERS);
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
    fn g54_only_what_is_known_to_be_harmless_is_shown() {
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
            assert!(!may_be_shown(name), "{name}");
        }
        assert!(may_be_shown("session.timeout.ms") && may_be_shown("client.id"));
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
