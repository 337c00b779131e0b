//! Says which examples there are, how to run them, and which of them this build leaves out.

/// An example: its name, what it shows, the features that it needs, and whether they are on.
struct Example(&'static str, &'static str, &'static str, bool);

const EMBEDDED: &str = "the features `embedded` and `sqlite`";
const HAS_EMBEDDED: bool = cfg!(all(feature = "embedded", feature = "sqlite"));

const EXAMPLES: [Example; 11] = [
    Example(
        "quickstart",
        "an event that was sent twice, a handler that fails halfway, two services that handle the same event",
        EMBEDDED,
        HAS_EMBEDDED,
    ),
    Example(
        "ack_lab",
        "what each way to acknowledge does to an invoice when the handler fails halfway",
        "a broker and a database",
        cfg!(all(
            any(feature = "embedded", feature = "nats", feature = "kafka"),
            any(feature = "sqlite", feature = "postgres")
        )),
    ),
    Example(
        "pair",
        "outbox and inbox: an order, its message and its invoice, wherever a program dies",
        "a broker (not NATS) and a database",
        cfg!(all(
            any(feature = "embedded", feature = "kafka"),
            any(feature = "sqlite", feature = "postgres")
        )),
    ),
    Example(
        "custom_extractor",
        "arguments of one's own: another format, a checked payload, a header with a meaning",
        EMBEDDED,
        HAS_EMBEDDED,
    ),
    Example(
        "library_crate",
        "handlers in a library crate, and a program that links it",
        EMBEDDED,
        HAS_EMBEDDED,
    ),
    Example(
        "manual_claim",
        "the inbox without the macro: webhooks that are claimed by hand",
        "the feature `sqlite`",
        cfg!(feature = "sqlite"),
    ),
    Example(
        "testing",
        "a service that is tested with the test kit: `cargo test -p inbox-examples --example testing`",
        EMBEDDED,
        HAS_EMBEDDED,
    ),
    Example(
        "axum_service",
        "HTTP and inbox on one pool, and a graceful stop of both",
        "`--features axum`",
        cfg!(feature = "axum") && HAS_EMBEDDED,
    ),
    Example(
        "nats_postgres",
        "a service on NATS JetStream and PostgreSQL: publishes, handles, and shows what a redelivery does",
        "`--features nats,postgres`",
        cfg!(all(feature = "nats", feature = "postgres")),
    ),
    Example(
        "observed",
        "the spans, the metrics and the health of an inbox while it works and while it stops",
        "`--features observed`",
        cfg!(feature = "observed") && HAS_EMBEDDED,
    ),
    Example(
        "kafka_postgres",
        "a service on Apache Kafka and PostgreSQL: publishes, handles, and shows what a redelivery does",
        "`--features kafka,postgres`",
        cfg!(all(feature = "kafka", feature = "postgres")),
    ),
];

fn main() {
    println!("run an example with `cargo run -p inbox-examples --example NAME`:");
    for Example(name, what, needs, built) in EXAMPLES {
        let left_out = if built {
            String::new()
        } else {
            format!(" (left out: needs {needs})")
        };
        println!("  {name:<18}{what}{left_out}");
    }
}
