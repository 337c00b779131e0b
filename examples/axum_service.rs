//! A service with HTTP and an inbox on one pool: orders come by HTTP, each is written and published in one transaction, and
//! invoices are written by a handler. When it is told to stop, both finish what they are doing.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-examples --features axum --example axum_service
//! curl -d '{"order_id": "o1", "amount_cents": 4200}' -H 'content-type: application/json' http://127.0.0.1:3000/orders
//! curl http://127.0.0.1:3000/invoices
//! ```
//!
//! and stop it with Ctrl-C or SIGTERM. `HTTP_ADDR` sets another address. Sent twice, an order makes one invoice: the second
//! time it is there, and nothing is published.

use std::{
    path::Path,
    sync::{Arc, Weak},
};

use axum::{
    Router,
    extract::{Json, State},
    http::StatusCode,
    routing::{get, post},
};
use inbox_runtime::{
    Embedded, Inbox, InboxHandle, Message, Report, inbox_handler,
    sqlx::{self, SqliteConnection, SqlitePool},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    order_id: String,
    amount_cents: i64,
}

// axum and the inbox both have a `Json`; a handler of messages takes the inbox's.
#[inbox_handler(group = "billing", subject = "order.created")]
async fn create_invoice(
    tx: &mut SqliteConnection,
    inbox_runtime::Json(order): inbox_runtime::Json<Order>,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// What the routes share.
#[derive(Clone)]
struct App {
    pool: SqlitePool,
    /// Only `serve` owns it, which waits for its end.
    inbox: Weak<InboxHandle>,
}

type Answer<T> = Result<T, (StatusCode, String)>;

fn failed(error: impl std::fmt::Display) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn place_order(State(app): State<App>, Json(order): Json<Order>) -> Answer<StatusCode> {
    write_order(&app.pool, &order).await.map_err(failed)?;
    // The relay would see the message within a second; now it looks at once.
    if let Some(inbox) = app.inbox.upgrade() {
        inbox.wake_outbox();
    }
    Ok(StatusCode::ACCEPTED)
}

/// Writes the order and publishes it, or does neither.
async fn write_order(pool: &SqlitePool, order: &Order) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let written = sqlx::query("INSERT INTO orders (order_id, amount_cents) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(&order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    if written.rows_affected() > 0 {
        let message = Message::json("order.created", order)?.key(order.order_id.clone());
        inbox_runtime::publish(&mut *tx, message).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn invoices(State(app): State<App>) -> Answer<Json<Vec<Order>>> {
    let rows: Vec<(String, i64)> = sqlx::query_as("SELECT order_id, amount_cents FROM invoices ORDER BY order_id")
        .fetch_all(&app.pool)
        .await
        .map_err(failed)?;
    let order = |(order_id, amount_cents)| Order { order_id, amount_cents };
    Ok(Json(rows.into_iter().map(order).collect()))
}

async fn told_to_stop() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let address = std::env::var("HTTP_ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    println!("{}", serve(folder.path(), listener, told_to_stop()).await?);
    Ok(())
}

/// Serves and handles until it is told to stop. Returns what became of the messages.
async fn serve(
    folder: &Path,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Report, Box<dyn std::error::Error>> {
    let pool = SqlitePool::connect(&format!("sqlite://{}?mode=rwc", folder.join("app.db").display())).await?;
    sqlx::raw_sql(
        "CREATE TABLE orders (order_id TEXT PRIMARY KEY, amount_cents INTEGER);
         CREATE TABLE invoices (order_id TEXT, amount_cents INTEGER);",
    )
    .execute(&pool)
    .await?;

    // One pool for both. When this returns, everything is checked, connected and subscribed, and the tables of the inbox and
    // the outbox are there.
    let inbox = Inbox::builder()
        .store(pool.clone())
        .broker(Embedded::file(folder.join("broker.db")))
        .spawn()
        .await?;
    let inbox = Arc::new(inbox);

    let routes = Router::new()
        .route("/orders", post(place_order))
        .route("/invoices", get(invoices))
        .with_state(App {
            pool,
            inbox: Arc::downgrade(&inbox),
        });
    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;

    // No more orders come in. Handlers that run finish; everything else waits, in the outbox or at the broker, for the next start.
    inbox.stop();
    let inbox = Arc::into_inner(inbox).ok_or("a request still has the inbox")?;
    Ok(inbox.join().await?)
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        sync::oneshot,
    };

    use super::*;

    /// The status line and the body of the answer.
    async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.lines().next().expect("a status").to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn an_order_that_is_placed_twice_makes_one_invoice_and_both_parts_stop() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (stop, stopped) = oneshot::channel::<()>();
        let client = async {
            let order = r#"{"order_id":"o1","amount_cents":4200}"#;
            for _ in 0..2 {
                let (status, _) = ask(address, "POST", "/orders", order).await;
                assert_eq!(status, "HTTP/1.1 202 Accepted");
            }
            let invoices = async {
                while ask(address, "GET", "/invoices", "").await.1 != format!("[{order}]") {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), invoices)
                .await
                .expect("the invoice");
            stop.send(()).expect("it runs");
        };
        let serving = serve(folder.path(), listener, async { drop(stopped.await) });
        let (report, ()) = tokio::join!(serving, client);
        assert_eq!(report.expect("it has stopped").processed, 1);
    }
}
