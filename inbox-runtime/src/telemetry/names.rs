//! The names of spans, fields and metrics.

/// The span around the handling of one message, from its decoding to its acknowledgement. It has the level INFO.
pub const SPAN: &str = "inbox.handle";

/// A field of the span or of log events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Whether it is on the span, and so is part of every event that is logged while a message is handled.
    pub on_span: bool,
    /// What it means.
    pub meaning: &'static str,
}

const fn on_span(name: &'static str, meaning: &'static str) -> Field {
    Field {
        name,
        on_span: true,
        meaning,
    }
}

const fn on_events(name: &'static str, meaning: &'static str) -> Field {
    Field {
        name,
        on_span: false,
        meaning,
    }
}

/// Every field of the span, then those of log events.
pub const FIELDS: [Field; 47] = [
    on_span("group", "the consumer group"),
    on_span(
        "subject",
        "the subject that the message has; at the start, what the handler subscribes to",
    ),
    on_span("handler", "the path of the handler's function"),
    on_span("message_id", "the id by which the message is deduplicated"),
    on_span(
        "delivery_count",
        "how often it was delivered, this time included, where the broker counts",
    ),
    on_span("outcome", "its outcome, one of those below"),
    on_events("ack", "when the handler's messages are acknowledged"),
    on_events("addr", "where health and metrics are served"),
    on_events("aside", "whether a message is nak'ed so that others have their turn"),
    on_events("attempts", "how often the handler has failed on the message"),
    on_events("broker", "the broker and its version"),
    on_events(
        "changed",
        "the settings of a durable that were changed, with both values",
    ),
    on_events("code", "the name of a Kafka error"),
    on_events("database", "a database and its version"),
    on_events("delay_ms", "the delay of the redelivery, in milliseconds"),
    on_events("durable", "a durable consumer of NATS"),
    on_events("error", "the error, with all its sources"),
    on_events("facility", "the part of librdkafka that logs"),
    on_events("index", "the index of a header in its record"),
    on_events("instance", "the id of the embedded broker's file"),
    on_events("lost", "whether partitions were lost without a revocation"),
    on_events("mode", "the journal mode of the embedded broker's file"),
    on_events("most", "how many deliveries the stream allows in flight"),
    on_events("nearest", "the most similar known variable"),
    on_events(
        "part",
        "the part of a source that is blocked: a topic, a partition, the group",
    ),
    on_events("partition", "a partition of a topic, as `topic:number`"),
    on_events("partitions", "partitions of topics"),
    on_events(
        "place",
        "where the handler is declared, as `file:line`; where the embedded broker lives",
    ),
    on_events("places", "the variables, or lines of the file, that set something"),
    on_events("position", "where in the broker a durable consumer begins"),
    on_events("reads", "the stream that a handler reads"),
    on_events("reason", "why a message is dead-lettered, or a delete marker was made"),
    on_events("report", "how many deliveries had which outcome"),
    on_events(
        "seq",
        "the number of a message in its stream, or in the embedded broker",
    ),
    on_events("servers", "the servers of NATS, without any password"),
    on_events("signal", "the signal that the program got"),
    on_events("skipped", "how many delete markers were acknowledged without a handler"),
    on_events("start", "where a new group begins"),
    on_events("status", "the status code that the NATS server answered with"),
    on_events("stream", "a stream of NATS"),
    on_events("subjects", "the subjects of a stream"),
    on_events("timeout_s", "how long the drain was allowed to take, in seconds"),
    on_events("variable", "an environment variable"),
    on_events("waiting", "how many messages wait in a durable"),
    on_events("wanted", "how many deliveries the handler could take at a time"),
    on_events("why", "why no messages arrive"),
    on_events("words", "the text of a NATS server that denies a permission"),
];

/// A metric, as the `metrics` facade has it (feature `metrics`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The label that it has besides `group`, `handler` and `subject`, which every one of a handler has.
    pub label: Option<&'static str>,
    /// What it means. The unit is the last word of the name.
    pub meaning: &'static str,
}

/// What a [`Metric`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// Only ever grows.
    Counter,
    /// Is what it is now.
    Gauge,
    /// The distribution of a value.
    Histogram,
}

impl MetricKind {
    /// The kind in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

const fn metric(name: &'static str, kind: MetricKind, label: Option<&'static str>, meaning: &'static str) -> Metric {
    Metric {
        name,
        kind,
        label,
        meaning,
    }
}

pub(super) const DELIVERIES: Metric = metric(
    "inbox_deliveries_total",
    MetricKind::Counter,
    Some("outcome"),
    "what became of the deliveries",
);
pub(super) const ATTEMPTS: Metric = metric(
    "inbox_attempts_total",
    MetricKind::Counter,
    None,
    "how often the handler began, in each fresh transaction too",
);
pub(super) const DEAD_LETTERS: Metric = metric(
    "inbox_dead_letters_total",
    MetricKind::Counter,
    Some("reason"),
    "messages that were dead-lettered",
);
pub(super) const ACK_FAILURES: Metric = metric(
    "inbox_ack_failures_total",
    MetricKind::Counter,
    None,
    "acknowledgements that failed; those messages are redelivered, and are duplicates where they were claimed",
);
pub(super) const PAYLOAD_MISMATCHES: Metric = metric(
    "inbox_payload_mismatches_total",
    MetricKind::Counter,
    None,
    "duplicates whose payload differs from that of the message which was handled: a producer reuses its ids",
);
pub(super) const HANDLING: Metric = metric(
    "inbox_handling_seconds",
    MetricKind::Histogram,
    None,
    "from the decoding of a delivery to the end of its transaction, whatever became of it",
);
pub(super) const PUBLISH_TO_COMMIT: Metric = metric(
    "inbox_publish_to_commit_seconds",
    MetricKind::Histogram,
    None,
    "from publication, by the broker's clock, to the commit, by this machine's",
);
pub(super) const IN_FLIGHT: Metric = metric(
    "inbox_in_flight_messages",
    MetricKind::Gauge,
    None,
    "deliveries that are leased: handled now, or waiting for a worker",
);
pub(super) const OLDEST_TRANSACTION: Metric = metric(
    "inbox_oldest_transaction_seconds",
    MetricKind::Gauge,
    None,
    "the age of the oldest open handler transaction, 0 if there is none; sampled each second",
);
pub(super) const LAG: Metric = metric(
    "inbox_lag_messages",
    MetricKind::Gauge,
    None,
    "messages that the group has not acknowledged yet; absent or NaN while that is unknown; sampled each second",
);

const fn outbox_metric(name: &'static str, kind: MetricKind, meaning: &'static str) -> Metric {
    metric(name, kind, Some("database"), meaning)
}

pub(super) const OUTBOX_OLDEST: Metric = outbox_metric(
    "inbox_outbox_oldest_seconds",
    MetricKind::Gauge,
    "the age of the oldest message that waits in the outbox, by the database's clock; 0 when it is empty",
);
pub(super) const OUTBOX_PENDING: Metric = outbox_metric(
    "inbox_outbox_pending_messages",
    MetricKind::Gauge,
    "messages that wait in the outbox and are not delayed; counted every five seconds, up to one more than `outbox.max_pending`",
);
pub(super) const OUTBOX_PUBLISHED: Metric = outbox_metric(
    "inbox_outbox_published_total",
    MetricKind::Counter,
    "messages of the outbox that this program has published and the broker has confirmed",
);
pub(super) const OUTBOX_PARKED: Metric = outbox_metric(
    "inbox_outbox_parked_messages",
    MetricKind::Gauge,
    "messages of the outbox that are parked, because the broker refuses them; counted every thirty seconds, up to 1001",
);

/// The metrics of an outbox. Their only label is `database`.
pub const OUTBOX_METRICS: [Metric; 4] = [OUTBOX_OLDEST, OUTBOX_PENDING, OUTBOX_PUBLISHED, OUTBOX_PARKED];

/// Every metric of a handler.
pub const METRICS: [Metric; 10] = [
    DELIVERIES,
    ATTEMPTS,
    DEAD_LETTERS,
    ACK_FAILURES,
    PAYLOAD_MISMATCHES,
    HANDLING,
    PUBLISH_TO_COMMIT,
    IN_FLIGHT,
    OLDEST_TRANSACTION,
    LAG,
];
