//! One event that its producer sent twice, a handler that fails halfway, and two services that handle the same event.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-examples --example quickstart
//! ```
//!
//! It needs nothing but Rust: the broker and the database are SQLite files in a temporary folder. Its exit status is 0 if
//! every count is what it should be.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{
    Embedded, Inbox, Json, Message, Outcome, State, inbox_handler,
    sqlx::{self, SqliteConnection, SqlitePool, sqlite::SqliteConnectOptions},
};

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderCreated {
    order_id: String,
    amount_cents: i64,
}

/// How often the points handler has run.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

/// Writes the invoice. However often the event is delivered, there is one.
#[inbox_handler(group = "billing", subject = "order.created")]
async fn create_invoice(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// Another service handles the same event: its group has an inbox of its own.
#[inbox_handler(group = "shipping", subject = "order.created")]
async fn pack_parcel(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO parcels (order_id) VALUES ($1)")
        .bind(order.order_id)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// Fails on its first run, after it has written: what it wrote is rolled back, and the event comes again.
#[inbox_handler(group = "loyalty", subject = "order.created", backoff = "100ms")]
async fn add_points(
    tx: &mut SqliteConnection,
    Json(order): Json<OrderCreated>,
    State(runs): State<Runs>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    sqlx::query("INSERT INTO points (order_id, points) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents / 100)
        .execute(&mut *tx)
        .await?;
    if runs.0.fetch_add(1, Ordering::SeqCst) == 0 {
        return Err("the connection to the loyalty service was lost".into());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let database = SqliteConnectOptions::new()
        .filename(folder.path().join("app.db"))
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(database).await?;
    // No unique keys, so that a second effect would show.
    sqlx::raw_sql(
        "CREATE TABLE invoices (order_id TEXT, amount_cents INTEGER);
         CREATE TABLE parcels (order_id TEXT);
         CREATE TABLE points (order_id TEXT, points INTEGER);",
    )
    .execute(&pool)
    .await?;
    let broker = Embedded::file(folder.path().join("broker.db"));

    let order = OrderCreated {
        order_id: "o1".to_owned(),
        amount_cents: 4_200,
    };
    let event = Message::json("order.created", &order)?.id("evt-1");
    broker.publish(event.clone()).await?;
    broker.publish(event).await?;

    println!("billing: the event was sent twice, the invoice is written once");
    let mut billing = inbox(&pool, &broker, "billing").build().await?;
    for delivery in 1..=2 {
        let acked_before = billing.report().acked;
        let outcome = billing.process_one(Duration::from_secs(5)).await?;
        println!(
            "delivery {delivery}: processed={} duplicate={} committed={} invoices={}",
            python(outcome == Some(Outcome::Processed)),
            python(outcome == Some(Outcome::Duplicate)),
            python(billing.report().acked > acked_before),
            count(&pool, "SELECT count(*) FROM invoices").await?,
        );
    }

    println!("\nloyalty: the first run fails halfway, is rolled back, and comes again");
    let runs = Runs::default();
    let mut loyalty = inbox(&pool, &broker, "loyalty").state(runs.clone()).build().await?;
    let mut delivery = 0;
    while let Some(outcome) = loyalty.process_one(Duration::from_secs(1)).await? {
        delivery += 1;
        println!(
            "delivery {delivery}: {outcome}, the handler has run {} times, rows written: {}",
            runs.0.load(Ordering::SeqCst),
            count(&pool, "SELECT count(*) FROM points").await?,
        );
    }

    println!("\nshipping: the same event, handled by itself");
    let report = inbox(&pool, &broker, "shipping")
        .build()
        .await?
        .run_until_idle()
        .await?;
    println!("processed={} duplicate={}", report.processed, report.duplicate);

    let counts = [
        count(&pool, "SELECT count(*) FROM invoices").await?,
        count(&pool, "SELECT count(*) FROM points").await?,
        count(&pool, "SELECT count(*) FROM parcels").await?,
    ];
    println!("\ninvoices={} points={} parcels={}", counts[0], counts[1], counts[2]);
    if counts == [1, 1, 1] {
        Ok(())
    } else {
        Err("every effect should exist once".into())
    }
}

fn inbox(pool: &SqlitePool, broker: &Embedded, group: &str) -> inbox_runtime::InboxBuilder {
    Inbox::builder()
        .store(pool.clone())
        .broker(broker.clone())
        .groups([group])
}

async fn count(pool: &SqlitePool, sql: &'static str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(sql).fetch_one(pool).await
}

/// A boolean as the original measurement printed it.
fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
