//! What the page about Python says of taking over from omni-box and nats-outbox, done on PostgreSQL with its own statements.

use std::time::Duration;

use inbox_runtime::{Embedded, Inbox, Message, OutboxMode, Outcome, sqlx::PgPool, testing::Harness};
use inbox_tests::{Flaky, PostgresDatabase, Probe, TestDatabase};
use serde_json::{Value, json};

use crate::readme::blocks;

const PAGE: &str = include_str!("../../../inbox-runtime/docs/from_python.md");

/// The first statement of the page with that text in it.
fn sql(text: &str) -> String {
    let mut found = blocks(PAGE).into_iter().filter(|block| block.language == "sql");
    let found = found.find(|block| block.code.contains(text));
    found
        .unwrap_or_else(|| panic!("the page has no statement with `{text}`"))
        .code
}

#[tokio::test]
async fn what_nats_outbox_has_handled_is_a_duplicate_after_the_takeover() {
    let database = PostgresDatabase::fresh().await;
    let old = "0e1e0c5e-5a0c-4b3e-8b5a-111111111111";
    database
        .exec(&format!(
            "CREATE TABLE inbox_events (event_id uuid, consumer_group text, PRIMARY KEY (event_id, consumer_group)); \
             INSERT INTO inbox_events VALUES ('{old}', 'billing')"
        ))
        .await;
    let refused = inbox_runtime::migrate(&database.pool())
        .await
        .expect_err("it is another's");
    assert!(format!("{refused:?}").contains("inbox_events"), "{refused:?}");

    let given = PAGE
        .split('`')
        .find(|span| span.contains("?options="))
        .expect("the URL");
    let (_, options) = given.split_once('?').expect("the options");
    let url = database.url();
    let separator = if url.contains('?') { '&' } else { '?' };
    assert!(PAGE.contains("`CREATE SCHEMA inbox`"));
    database.exec("CREATE SCHEMA inbox").await;
    let pool = PgPool::connect(&format!("{url}{separator}{options}"))
        .await
        .expect("the database");
    inbox_runtime::migrate(&pool).await.expect("the tables");
    database.exec(&sql("INSERT INTO inbox.inbox_events")).await;

    let mut inbox = Harness::start(&pool, |inbox| {
        let ours = |name: &str| name == "inbox_tests::handlers::postgres::billing";
        inbox
            .groups(["billing"])
            .state(Probe::default())
            .select(move |meta| ours(meta.name))
    })
    .await;
    let fresh = "0e1e0c5e-5a0c-4b3e-8b5a-222222222222";
    for id in [old, fresh] {
        let message = Message::new("order.created", r#"{"order_id": "o1"}"#).header("Nats-Msg-Id", id);
        inbox.publish(message).await;
    }
    inbox.assert_outcome(old, Outcome::Duplicate).await;
    inbox.assert_outcome(fresh, Outcome::Processed).await;
    inbox.assert_count("SELECT count(*) FROM effects", 1).await;
}

/// The table of nats-outbox 0.1, without its indexes.
const NATS_OUTBOX: &str = "
    CREATE TABLE outbox_events (
        id bigserial PRIMARY KEY, event_id uuid NOT NULL UNIQUE, subject text NOT NULL, headers jsonb NOT NULL, payload jsonb NOT NULL,
        status varchar(20) NOT NULL CHECK (status IN ('pending', 'published', 'failed')), retry_count smallint NOT NULL,
        last_error text, aggregate_id text, aggregate_type text, created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(), scheduled_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)";

/// That of omni-box 0.3, without its indexes.
const OMNI_BOX: &str = "
    CREATE TABLE outbox_events (
        id uuid PRIMARY KEY, event_type varchar(100) NOT NULL, payload jsonb NOT NULL, headers jsonb, trace_id varchar(64),
        idempotency_key varchar(128), correlation_id varchar(64), causation_id varchar(64), schema_version varchar(50),
        status varchar(20) NOT NULL, attempts_made int NOT NULL, max_attempts int NOT NULL, last_error varchar(2000),
        scheduled_at timestamptz NOT NULL, completed_at timestamptz, locked_at timestamptz, locked_by varchar(255),
        created_at timestamptz NOT NULL DEFAULT timezone('UTC', now()), updated_at timestamptz DEFAULT timezone('UTC', now()),
        aggregate_type varchar(50) NOT NULL, aggregate_id uuid NOT NULL, topic varchar(255) NOT NULL,
        partition_key varchar(255) NOT NULL)";

/// What the relay publishes of four rows, which `insert` writes by their number and the time that they are due: one is there before the
/// takeover, one comes after it, one is rolled back, and one is due later.
async fn relayed(table: &str, trigger: &str, insert: impl Fn(u32, &str) -> String) -> Vec<Message> {
    let database = PostgresDatabase::fresh().await;
    inbox_runtime::migrate(&database.pool()).await.expect("the tables");
    database.exec(table).await;
    database.exec(&insert(1, "now()")).await;
    let takeover = format!("BEGIN; {} {} COMMIT", sql(trigger), sql("WITH pending AS"));
    database.exec(&takeover).await;
    database.exec(&insert(2, "now()")).await;
    database.exec(&format!("BEGIN; {}; ROLLBACK", insert(3, "now()"))).await;
    database.exec(&insert(4, "now() + interval '1 hour'")).await;
    assert_eq!(database.number("SELECT count(*) FROM outbox_events").await, 0);

    let broker = Flaky::new(Embedded::memory());
    let relay = Inbox::builder().store(database.pool()).broker(broker.clone());
    let mut relay = relay
        .outbox(OutboxMode::Relay)
        .select(|_| false)
        .build()
        .await
        .expect("a relay");
    relay.process_one(Duration::ZERO).await.expect("relayed");
    assert_eq!(broker.published().len(), 2);
    database.exec(PostgresDatabase::HURRY).await;
    relay.process_one(Duration::ZERO).await.expect("relayed");
    broker.published()
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message
        .headers
        .get(name)
        .map(|value| std::str::from_utf8(value).expect("text"))
}

fn payload(message: &Message) -> Value {
    serde_json::from_slice(message.payload.as_deref().expect("a payload")).expect("JSON")
}

fn id(number: u32) -> String {
    format!("0e1e0c5e-5a0c-4b3e-8b5a-00000000000{number}")
}

#[tokio::test]
async fn b25_the_rows_of_nats_outbox_are_relayed() {
    let insert = |number: u32, due: &str| {
        let id = id(number);
        format!(
            "INSERT INTO outbox_events (event_id, subject, headers, payload, status, retry_count, aggregate_id, scheduled_at)
             VALUES ('{id}', 'order.created', '{{\"Nats-Msg-Id\": \"{id}\", \"source\": \"schön\", \"none\": null}}',
                 '{{\"n\": {number}}}', 'pending', 0, 'o1', {due})"
        )
    };
    let published = relayed(NATS_OUTBOX, "UNION ALL", insert).await;
    for (message, number) in published.iter().zip([1, 2, 4]) {
        assert_eq!(message.subject, "order.created");
        assert_eq!(message.key.as_deref(), Some(&b"o1"[..]));
        assert_eq!(header(message, "message_id"), Some(&*id(number)));
        assert_eq!(header(message, "source"), Some("schön"));
        assert_eq!(message.headers.len(), 2, "{:?}", message.headers);
        assert_eq!(payload(message), json!({ "n": number }));
    }
    assert_eq!(published.len(), 3);
}

#[tokio::test]
async fn b25_the_rows_of_omni_box_are_relayed() {
    let aggregate = "00000000-0000-0000-0000-000000000007";
    let insert = |number: u32, due: &str| {
        let (id, aggregate) = (id(number), &aggregate);
        format!(
            "INSERT INTO outbox_events (id, event_type, payload, headers, trace_id, status, attempts_made, max_attempts, scheduled_at,
                 created_at, aggregate_type, aggregate_id, topic, partition_key)
             VALUES ('{id}', 'order.created', '{{\"n\": {number}, \"none\": null}}', '{{\"event_id\": \"x\", \"source\": \"shop\"}}',
                 'trace-1', 'pending', 0, 5, {due}, '2026-11-29T13:27:41.985258Z', 'order', '{aggregate}', 'orders', 'o1')"
        )
    };
    let published = relayed(OMNI_BOX, "'event_id', NEW.id", insert).await;
    for (message, number) in published.iter().zip([1, 2, 4]) {
        assert_eq!(message.subject, "orders");
        assert_eq!(message.key.as_deref(), Some(&b"o1"[..]));
        assert_eq!(header(message, "event_id"), Some(&*id(number)));
        assert_eq!(header(message, "event_type"), Some("order.created"));
        assert_eq!(header(message, "source"), Some("shop"));
        assert_eq!(header(message, "trace_id"), Some("trace-1"));
        assert_eq!(message.headers.len(), 4, "{:?}", message.headers);
        assert_eq!(
            payload(message),
            json!({
                "schema_version": "1.0.0", "event_type": "order.created", "aggregate_type": "order", "aggregate_id": aggregate,
                "payload": { "n": number, "none": null }, "timestamp": "2026-11-29T13:27:41.985258+00:00", "trace_id": "trace-1",
            })
        );
    }
    assert_eq!(published.len(), 3);
}
