//! Outbox and inbox as a pair: a measurement of what becomes of an order, its message and its invoice when a program dies between
//! any two steps.
//!
//! A service writes an order and its message in one transaction, a relay publishes the message after the commit, and a handler
//! writes the invoice and publishes the next message. Run with
//!
//! ```text
//! cargo run -p inbox-examples --example pair
//! ```
//!
//! `INBOX_BROKER_URL` and `DATABASE_URL` name the broker and the database to measure; unset, both are files in a temporary
//! folder. Its exit status is 0 if every line is what it should be. On Kafka and PostgreSQL, which this starts:
//!
//! ```text
//! cargo run -p inbox-tests --bin servers -- postgres kafka -- \
//!     cargo run -p inbox-examples --features kafka,postgres --example pair
//! ```
//!
//! Not on NATS: its server takes the copy that the lab makes for what it is, so that the inbox never sees it.

use std::{error::Error, path::Path};

use inbox_runtime::{
    Broker, IntoStore, Json, Message, Meta, Outbox, inbox_handler,
    sqlx::{self, Connection},
};

mod lab;
mod watched;

use lab::Lab;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Where orders are told.
const ORDERS: &str = "pair.order-created";
/// Where the handler of orders tells of its invoices.
const INVOICES: &str = "pair.invoice-created";
/// Where a program without an outbox tells of its orders. Nobody listens.
const NO_OUTBOX: &str = "pair.no-outbox";

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Order {
    order_id: String,
}

impl Order {
    /// The message that tells of it, which has no id yet.
    fn to(&self, subject: &str) -> Result<Message, serde_json::Error> {
        Ok(Message::json(subject, self)?.key(self.order_id.clone()))
    }
}

/// What the lab does in a database.
trait Database: IntoStore + Clone + Send + 'static {
    /// The module of its handlers.
    const HANDLERS: &'static str;

    /// Writes an order and perhaps its message, in one transaction.
    async fn place(&self, order: &Order, message: Option<Message>, commits: bool) -> Result<()>;

    /// The number that a query gives whose argument is the order's id, or how the ids of several begin.
    async fn number(&self, sql: &'static str, order_id: &str) -> Result<i64>;
}

/// The handlers of a database, and what the lab does in it.
macro_rules! database {
    ($module:ident, $conn:ty, $pool:ty, $begin:literal) => {
        mod $module {
            use super::*;

            /// Writes the invoice, and publishes the message that tells of it.
            #[inbox_handler(group = "pair-billing", subject = "pair.order-created")]
            async fn create_invoice(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
                outbox: Outbox,
            ) -> Result<(), inbox_runtime::HandlerError> {
                sqlx::query("INSERT INTO pair_invoices (order_id, message_id) VALUES ($1, $2)")
                    .bind(&order.order_id)
                    .bind(meta.message_id())
                    .execute(&mut *tx)
                    .await?;
                outbox.publish(order.to(INVOICES)?);
                Ok(())
            }

            /// The reader of that message.
            #[inbox_handler(group = "pair-mail", subject = "pair.invoice-created")]
            async fn send_mail(tx: &mut $conn, Json(order): Json<Order>) -> Result<(), sqlx::Error> {
                sqlx::query("INSERT INTO pair_mails (order_id) VALUES ($1)")
                    .bind(order.order_id)
                    .execute(&mut *tx)
                    .await?;
                Ok(())
            }

            impl Database for $pool {
                const HANDLERS: &'static str = stringify!($module);

                async fn place(&self, order: &Order, message: Option<Message>, commits: bool) -> Result<()> {
                    let mut tx = self.begin_with($begin).await?;
                    sqlx::query("INSERT INTO pair_orders (order_id) VALUES ($1)")
                        .bind(&order.order_id)
                        .execute(&mut *tx)
                        .await?;
                    if let Some(message) = message {
                        inbox_runtime::publish(&mut *tx, message).await?;
                    }
                    if commits {
                        tx.commit().await?;
                    } else {
                        tx.rollback().await?;
                    }
                    Ok(())
                }

                async fn number(&self, sql: &'static str, order_id: &str) -> Result<i64> {
                    Ok(sqlx::query_scalar(sql).bind(order_id).fetch_one(self).await?)
                }
            }

            /// Measures on the database of that URL.
            pub(super) async fn measure<B: Broker + Clone>(broker: B, url: &str) -> Result<()> {
                let mut conn = <$conn>::connect(url).await?;
                // No table has a key, so that a second row would show.
                for table in [
                    "CREATE TABLE IF NOT EXISTS pair_orders (order_id TEXT NOT NULL)",
                    "CREATE TABLE IF NOT EXISTS pair_invoices (order_id TEXT NOT NULL, message_id TEXT NOT NULL)",
                    "CREATE TABLE IF NOT EXISTS pair_mails (order_id TEXT NOT NULL)",
                ] {
                    sqlx::query(table).execute(&mut conn).await?;
                }
                let pool = <$pool>::connect(url).await?;
                inbox_runtime::migrate(&pool).await?;
                Lab::new(pool, broker)?.measure().await
            }
        }
    };
}

#[cfg(feature = "sqlite")]
database!(sqlite, sqlx::SqliteConnection, sqlx::SqlitePool, "BEGIN IMMEDIATE");
#[cfg(feature = "postgres")]
database!(postgres, sqlx::PgConnection, sqlx::PgPool, "BEGIN");

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // A broker or a database is added by a line.
    let url = url("INBOX_BROKER_URL", "embedded:", &folder.path().join("broker.db"));
    match url.split(':').next() {
        #[cfg(feature = "embedded")]
        Some("embedded") => on(folder.path(), embedded(&url)).await,
        #[cfg(feature = "kafka")]
        Some("kafka") => {
            let topics = [ORDERS, INVOICES, NO_OUTBOX].into_iter();
            let kafka = topics.fold(inbox_runtime::Kafka::new(&url), |kafka, topic| {
                kafka.create_topic(topic, 1)
            });
            on(folder.path(), kafka).await
        }
        _ => Err("INBOX_BROKER_URL names a broker that this lab, or this build of it, is not for".into()),
    }
}

/// Measures with that broker.
async fn on<B: Broker + Clone>(folder: &Path, broker: B) -> Result<()> {
    let url = url("DATABASE_URL", "sqlite://", &folder.join("app.db"));
    match url.split(':').next() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") if url.contains('?') => sqlite::measure(broker, &url).await,
        #[cfg(feature = "sqlite")]
        Some("sqlite") => sqlite::measure(broker, &format!("{url}?mode=rwc")).await,
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => postgres::measure(broker, &url).await,
        _ => Err("this program was built without the database that DATABASE_URL names".into()),
    }
}

/// The URL in a variable, else that of a file.
fn url(variable: &str, scheme: &str, file: &Path) -> String {
    std::env::var(variable).unwrap_or_else(|_| format!("{scheme}{}", file.display()))
}

#[cfg(feature = "embedded")]
fn embedded(url: &str) -> inbox_runtime::Embedded {
    match url.trim_start_matches("embedded:").trim_start_matches("//") {
        "memory" => inbox_runtime::Embedded::memory(),
        path => inbox_runtime::Embedded::file(path),
    }
}
