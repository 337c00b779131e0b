//! The examples print what the founding documents measured, to the letter, and exit with success.

use crate::readme::{run_example as run, run_example_on};

/// Every feature of the examples, so that they are built once.
const FEATURES: &str = "nats,kafka,postgres,observed,axum";

const HEADING: &str =
    "--- one message, a handler that fails on its first run; then a fresh consumer of the same group ---";

/// The rows of the founding document.
const TABLE: [&str; 6] = [
    HEADING,
    "AT_MOST_ONCE first: processed=False committed=True second consumer: nothing delivered handler ran=1 invoices=0",
    "AT_LEAST_ONCE, commit ON_PERSIST first: processed=False committed=True second consumer: nothing delivered handler ran=1 \
     invoices=0",
    "AT_LEAST_ONCE, commit ON_SUCCESS first: processed=False committed=False second consumer: processed=True handler ran=2 \
     invoices=1",
    "EXACTLY_ONCE_INBOX (default) first: processed=False committed=False second consumer: processed=True handler ran=2 \
     invoices=1",
    "The point was the third column. invoices=0, invoices=0, invoices=1, invoices=1.",
];

/// The heading and everything behind it, and what stands before it.
fn split(printed: &str) -> (Vec<String>, Vec<String>) {
    let lines: Vec<_> = printed.lines().map(str::to_owned).collect();
    let heading = lines.iter().position(|line| line == HEADING).expect("the heading");
    let (versions, table) = lines.split_at(heading);
    (versions.to_vec(), table.to_vec())
}

#[test]
fn b13_b26_the_lab_prints_the_four_rows_and_the_third_column() {
    let (versions, table) = split(&run("ack_lab"));
    assert_eq!(table, TABLE);
    // B2: on which broker and which database.
    assert_eq!(versions.len(), 2, "{versions:?}");
    assert!(versions[0].starts_with("embedded "), "{versions:?}");
    assert!(versions[1].starts_with("SQLite 3."), "{versions:?}");
}

#[cfg(all(feature = "nats", feature = "postgres"))]
#[test]
fn b13_the_lab_prints_the_same_on_nats_and_postgresql() {
    use inbox_tests::servers::{nats::Nats, postgres::Postgres};

    let (nats, postgres) = (Nats::start().expect("NATS"), Postgres::start().expect("PostgreSQL"));
    let (broker, database) = (nats.url(), postgres.url("postgres"));
    let servers = [
        ("INBOX_BROKER_URL", broker.as_str()),
        ("DATABASE_URL", database.as_str()),
    ];
    let (versions, table) = split(&run_example_on("ack_lab", FEATURES, &servers));
    assert_eq!(table, TABLE);
    assert!(versions[0].starts_with("NATS 2."), "{versions:?}");
    assert!(versions[1].starts_with("PostgreSQL "), "{versions:?}");
}

/// The founding document's own experiment, on the parts that it was made on.
#[cfg(all(feature = "kafka", feature = "postgres"))]
#[test]
fn b2_b13_the_lab_prints_the_same_on_kafka_and_postgresql() {
    use inbox_tests::servers::{kafka, postgres::Postgres};

    let postgres = Postgres::start().expect("PostgreSQL");
    let (broker, database) = (
        format!("kafka://{}", kafka::Shared::get().brokers()),
        postgres.url("postgres"),
    );
    let servers = [
        ("INBOX_BROKER_URL", broker.as_str()),
        ("DATABASE_URL", database.as_str()),
    ];
    let (versions, table) = split(&run_example_on("ack_lab", FEATURES, &servers));
    assert_eq!(table, TABLE);
    assert!(versions[0].starts_with("Kafka at "), "{versions:?}");
    assert!(versions[1].starts_with("PostgreSQL "), "{versions:?}");
}

/// What the lab of the pair measures. The first five and the two deliveries are of the author's own lab, without their padding; the
/// others are of its newer one.
const PAIR: [&str; 11] = [
    "commit, then publish, crash between: orders=1 messages=0",
    "publish, then commit, commit fails: orders=0 messages=1",
    "order and message in one transaction, rolled back: orders=0 outbox=0 messages=0",
    "relay cycle 1, crash after the send: outbox=1 messages=1",
    "relay cycle 2, normal: outbox=0 messages=2 ids=1",
    "delivery 1: processed=True duplicate=False committed=True invoices=1",
    "delivery 2: processed=False duplicate=True committed=True invoices=1",
    "broker away, 3 relay cycles: pending=3 parked=0",
    "broker back, 1 relay cycle: pending=0 messages=3 invoices=3",
    "two messages without an id: ids=2 processed=2 invoices=2",
    "the next message, which the handler publishes: invoices=6 messages=6 mails=6",
];

#[test]
fn b25_the_pair_loses_nothing_and_does_nothing_twice() {
    let printed = run("pair");
    let (_, lines) = printed.split_once("---\n").expect("the heading");
    assert_eq!(lines.lines().collect::<Vec<_>>(), PAIR);
}

#[test]
fn b11_the_quickstart_prints_the_two_lines_twice_in_a_row() {
    let printed = run("quickstart");
    let lines = "delivery 1: processed=True duplicate=False committed=True invoices=1\n\
                 delivery 2: processed=False duplicate=True committed=True invoices=1\n";
    assert!(printed.contains(lines), "{printed}");
    assert_eq!(run("quickstart"), printed);
}

#[test]
fn the_observed_example_prints_spans_metrics_and_readiness() {
    let printed = run_example_on("observed", FEATURES, &[]);
    assert!(printed.contains("GET /metrics: 200\n"), "{printed}");
    let handler = "handler=\"observed::create_invoice\"";
    for (id, outcome) in [
        ("evt-1", "processed"),
        ("evt-1", "duplicate"),
        ("evt-2", "dead_lettered"),
    ] {
        let parts = [
            "inbox.handle{group=\"billing\" subject=\"order.created\"",
            handler,
            &format!("message_id=\"{id}\" delivery_count=1 outcome=\"{outcome}\""),
        ];
        let line = printed
            .lines()
            .find(|line| parts.iter().all(|part| line.contains(part)));
        assert!(line.is_some(), "no {outcome} {id} in {printed}");
    }
    let labels = format!("group=\"billing\",{handler},subject=\"order.created\"");
    for line in [
        "# TYPE inbox_deliveries_total counter".to_owned(),
        format!("inbox_deliveries_total{{{labels},outcome=\"processed\"}} 1"),
        format!("inbox_deliveries_total{{{labels},outcome=\"duplicate\"}} 1"),
        format!("inbox_dead_letters_total{{{labels},reason=\"permanent\"}} 1"),
        format!("inbox_handling_seconds_count{{{labels}}} 3"),
    ] {
        assert!(printed.lines().any(|printed| printed == line), "no {line} in {printed}");
    }
    assert!(
        printed.contains("GET /readyz: 200 while it works, 503 while it stops"),
        "{printed}"
    );
}
