//! A service on Apache Kafka and PostgreSQL, which publishes an event of its own and handles it.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-tests --bin servers -- postgres kafka -- \
//!     cargo run -p inbox-examples --features kafka,postgres --example kafka_postgres
//! ```
//!
//! which starts both servers. On servers of your own leave out the first line and set `INBOX_BROKER_URL` (as in
//! `kafka://127.0.0.1:9092`) and `DATABASE_URL`. Its exit status is 0 if every count is what it should be.

use std::{
    env,
    error::Error,
    time::{Duration, SystemTime},
};

use inbox_runtime::{
    Inbox, Json, Kafka, Message, Meta, inbox_handler,
    sqlx::{self, PgConnection, PgPool},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderCreated {
    order_id: String,
    amount_cents: i64,
}

/// Writes the invoice. However often the event is delivered, there is one. Four partitions are handled at a time.
#[inbox_handler(group = "billing", subject = "order.created", concurrency = 4)]
async fn create_invoice(tx: &mut PgConnection, Json(order): Json<OrderCreated>, meta: Meta) -> Result<(), sqlx::Error> {
    println!("handling {} from {}", order.order_id, meta.subject());
    sqlx::query("INSERT INTO example_invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let pool = PgPool::connect(&variable("DATABASE_URL")?).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS example_invoices (order_id text NOT NULL, amount_cents bigint NOT NULL)")
        .execute(&pool)
        .await?;
    // The topic is made if nobody has made one; without that the inbox would wait until it is there.
    let broker = Kafka::new(variable("INBOX_BROKER_URL")?).create_topic("order.created", 8);

    let order = OrderCreated {
        order_id: unique()?,
        amount_cents: 4_200,
    };
    // The key keeps the events of a customer in order, and with them in one partition.
    let event = Message::json("order.created", &order)?
        .id(order.order_id.clone())
        .key("customer-7");
    println!("published at {}", broker.publish(event.clone()).await?.position);
    // A relay that crashed before it had noted the first one: to Kafka it is another record.
    println!("published at {}", broker.publish(event).await?.position);

    let inbox = Inbox::builder().store(pool.clone()).broker(broker).spawn().await?;
    while inbox.report().processed < 1 || inbox.report().duplicate < 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    inbox.stop();
    let report = inbox.join().await?;
    let invoices: i64 = sqlx::query_scalar("SELECT count(*) FROM example_invoices WHERE order_id = $1")
        .bind(&order.order_id)
        .fetch_one(&pool)
        .await?;
    println!(
        "processed={} duplicate={} invoices={invoices}",
        report.processed, report.duplicate
    );
    if invoices == 1 {
        Ok(())
    } else {
        Err("a count is not what it should be".into())
    }
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| format!("{name} is not set; see the head of examples/kafka_postgres.rs").into())
}

/// An id that no earlier run has used.
fn unique() -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(format!("order-{}", now.as_nanos()))
}
