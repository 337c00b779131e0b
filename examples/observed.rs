//! The spans, the metrics and the health of an inbox while it works and while it stops.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-examples --features observed --example observed
//! ```
//!
//! It needs nothing but Rust: the broker and the database are SQLite files in a temporary folder. It prints one line for
//! each span, then the Prometheus text that a scrape of `/metrics` gets, then what `/readyz` says. Its exit status is 0 if
//! all of that is what it should be.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use inbox_runtime::{
    Embedded, HandlerError, Inbox, InboxHandle, Json, Message, State, inbox_handler,
    sqlx::{self, SqliteConnection, SqlitePool, sqlite::SqliteConnectOptions},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(serde::Deserialize)]
struct OrderCreated {
    order_id: String,
    amount_cents: i64,
}

/// Holds a handler back until there is a permit.
#[derive(Clone)]
struct Gate(Arc<Semaphore>);

/// Writes the invoice. It refuses an amount that can't be, and takes as long as the gate is shut.
#[inbox_handler(group = "billing", subject = "order.created")]
async fn create_invoice(
    tx: &mut SqliteConnection,
    Json(order): Json<OrderCreated>,
    State(gate): State<Gate>,
) -> Result<(), HandlerError> {
    if order.amount_cents < 0 {
        return Err(HandlerError::permanent("an amount can't be negative"));
    }
    sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    gate.0.acquire().await?.forget();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One line when a span ends, with its fields.
    tracing_subscriber::fmt()
        .with_writer(std::io::stdout)
        .with_env_filter("inbox_runtime::telemetry=info")
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .without_time()
        .init();
    let folder = tempfile::tempdir()?;
    let database = SqliteConnectOptions::new()
        .filename(folder.path().join("app.db"))
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(database).await?;
    sqlx::query("CREATE TABLE invoices (order_id TEXT, amount_cents INTEGER)")
        .execute(&pool)
        .await?;
    let broker = Embedded::file(folder.path().join("broker.db"));
    // One order twice, and one that can't be.
    for (id, order_id, amount_cents) in [("evt-1", "o1", 4_200), ("evt-1", "o1", 4_200), ("evt-2", "o2", -1)] {
        let order = serde_json::json!({ "order_id": order_id, "amount_cents": amount_cents });
        broker.publish(Message::json("order.created", &order)?.id(id)).await?;
    }

    // In production: INBOX_HTTP_ADDR=0.0.0.0:8080. Port 0 is any free one.
    let gate = Gate(Arc::new(Semaphore::new(1)));
    let inbox = Inbox::builder()
        .store(pool)
        .broker(broker.clone())
        .state(gate.clone())
        .http_addr(([127, 0, 0, 1], 0))
        .spawn()
        .await?;
    println!("spans:");
    wait(&inbox, |inbox| inbox.report().acked == 3).await;

    let addr = inbox.http_addr().ok_or("no address")?;
    let (status, metrics) = get(addr, "/metrics").await?;
    println!("\nGET /metrics: {status}\n{metrics}");
    let (ready, _) = get(addr, "/readyz").await?;

    // One more, which is being handled when the inbox is told to stop.
    let order = serde_json::json!({ "order_id": "o3", "amount_cents": 100 });
    broker
        .publish(Message::json("order.created", &order)?.id("evt-3"))
        .await?;
    wait(&inbox, |inbox| inbox.health().handlers[0].oldest_transaction.is_some()).await;
    inbox.stop();
    let (stopping, _) = get(addr, "/readyz").await?;
    gate.0.add_permits(1);
    let report = inbox.join().await?;
    println!("GET /readyz: {ready} while it works, {stopping} while it stops\n\n{report}");
    match (
        ready,
        stopping,
        report.processed,
        report.duplicate,
        report.dead_lettered,
    ) {
        (200, 503, 2, 1, 1) => Ok(()),
        _ => Err("something is not what it should be".into()),
    }
}

/// Waits until the inbox is as it should be.
async fn wait(inbox: &InboxHandle, done: impl Fn(&InboxHandle) -> bool) {
    while !done(inbox) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The status and the body of what a server answers.
async fn get(addr: SocketAddr, path: &str) -> Result<(u16, String), Box<dyn std::error::Error>> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    // It is sent in one piece, whose length the server knows.
    Ok((status, body.to_owned()))
}
