//! A setting as the documentation has it; and those that have no value of their own in the program's overlay: of Kafka, NATS, handlers.

/// One setting of a program, as the documentation's table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The environment variable; `None` where there is none.
    pub variable: Option<&'static str>,
    /// The key in `inbox.toml`; `None` where there is none.
    pub key: Option<&'static str>,
    /// What its value looks like.
    pub kind: Kind,
    /// What holds when it isn't set; `None` if nothing does.
    pub default: Option<&'static str>,
    /// A value, as it is written in `inbox.toml`.
    pub example: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// What the value of a [`Setting`] looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Text, or one of the words in its meaning.
    Text,
    /// A URL. It may have a password, so it is never shown.
    Url,
    /// A duration from 1 ms to a year, as in `30s` or `500ms`.
    Duration,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Flag,
    /// Several words: separated by commas in a variable, an array in the file.
    List,
    /// Several words with a value each: a variable for each, a table in the file.
    Table,
}

impl Kind {
    /// The kind in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Url => "URL",
            Self::Duration => "duration",
            Self::Number => "number",
            Self::Flag => "flag",
            Self::List => "list",
            Self::Table => "table",
        }
    }
}

/// `INBOX_CONFIG`, which the file itself can't have.
pub(super) const CONFIG: Setting = Setting {
    variable: Some("INBOX_CONFIG"),
    key: None,
    kind: Kind::Text,
    default: Some("inbox.toml"),
    example: "/etc/app/inbox.toml",
    meaning: "the file with settings; one that is named must be there",
};

/// What the variables begin with that are properties of librdkafka.
pub(super) const KAFKA_PREFIX: &str = "INBOX_KAFKA_";

/// The properties of librdkafka: a variable for each, and a table in the file.
pub(super) const KAFKA: Setting = Setting {
    variable: Some("INBOX_KAFKA_…"),
    key: Some("kafka"),
    kind: Kind::Table,
    default: None,
    example: "{ \"session.timeout.ms\" = 10000 }",
    meaning: "properties of librdkafka, as INBOX_KAFKA_SESSION_TIMEOUT_MS is `session.timeout.ms`",
};

const fn of_nats(
    variable: &'static str,
    key: &'static str,
    kind: Kind,
    example: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting {
        variable: Some(variable),
        key: Some(key),
        kind,
        default: None,
        example,
        meaning,
    }
}

/// What can be said of the connection to NATS beside its URL.
#[rustfmt::skip]
pub(super) static NATS: [Setting; 13] = [
    of_nats("INBOX_NATS_USER", "nats.user", Kind::Text, "\"billing\"", "the user, with a password"),
    of_nats("INBOX_NATS_PASSWORD", "nats.password", Kind::Text, "\"secret\"", "the user's password"),
    of_nats("INBOX_NATS_TOKEN", "nats.token", Kind::Text, "\"secret\"", "a token instead of a user"),
    of_nats("INBOX_NATS_CREDENTIALS", "nats.credentials", Kind::Text, "\"/run/secrets/billing.creds\"",
        "a credentials file with a JWT and its seed"),
    of_nats("INBOX_NATS_NKEY", "nats.nkey", Kind::Text, "\"/run/secrets/billing.nk\"", "a file with the seed of an nkey"),
    of_nats("INBOX_NATS_CA", "nats.ca", Kind::Text, "\"/etc/nats/ca.pem\"",
        "a file with CA certificates to trust in addition to the system's"),
    of_nats("INBOX_NATS_CERT", "nats.cert", Kind::Text, "\"/etc/nats/client.pem\"", "a file with the client's certificate"),
    of_nats("INBOX_NATS_KEY", "nats.key", Kind::Text, "\"/run/secrets/client.key\"", "a file with the key of that certificate"),
    of_nats("INBOX_NATS_TLS_FIRST", "nats.tls_first", Kind::Flag, "true", "whether TLS comes before the server's greeting"),
    of_nats("INBOX_NATS_CREATE_STREAM", "nats.create_stream", Kind::Text, "\"ORDERS:order.*\"",
        "a stream with its subjects, which is created if it is missing"),
    of_nats("INBOX_NATS_DOMAIN", "nats.domain", Kind::Text, "\"hub\"", "the JetStream domain"),
    of_nats("INBOX_NATS_API_PREFIX", "nats.api_prefix", Kind::Text, "\"$JS.hub.API\"", "the prefix of JetStream API subjects"),
    of_nats("INBOX_NATS_INBOX_PREFIX", "nats.inbox_prefix", Kind::Text, "\"_INBOX_billing\"", "the prefix of inbox subjects"),
];

/// The same by their names in the table.
pub(super) fn nats_options() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    let named = |setting: &'static Setting| Some((setting.key?.strip_prefix("nats.")?, setting));
    NATS.iter().filter_map(named)
}

const fn of_handler(
    key: &'static str,
    kind: Kind,
    default: &'static str,
    example: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting {
        variable: None,
        key: Some(key),
        kind,
        default: Some(default),
        example,
        meaning,
    }
}

/// What the file can say of a handler, in place of its attribute.
#[rustfmt::skip]
pub(super) const OF_HANDLERS: [Setting; 4] = [
    of_handler("concurrency", Kind::Number, "the attribute's, 1", "4", "how many messages are handled at a time, 1 to 1024"),
    of_handler("timeout", Kind::Duration, "the attribute's, 5m", "\"30s\"", "how long one run may take"),
    of_handler("backoff", Kind::Text, "the attribute's, 1s..5m", "\"500ms..1m\"",
        "between attempts: the first and the largest bound, exponential with full jitter"),
    of_handler("max_attempts", Kind::Number, "the attribute's, 20", "5",
        "after how many failures a message goes to the dead letters, from 1, or \"unlimited\""),
];
