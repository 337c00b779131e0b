//! What each way to acknowledge makes of a handler that fails halfway: a measurement.
//!
//! One message, a handler that writes an invoice and then fails, and the consumer is stopped; then a fresh consumer of the
//! same group. Run with
//!
//! ```text
//! cargo run -p inbox-examples --example ack_lab
//! ```
//!
//! `INBOX_BROKER_URL` and `DATABASE_URL` name the broker and the database to measure; unset, both are files in a temporary
//! folder. Its exit status is 0 if every value is what it should be.

use std::{
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use inbox_runtime::{
    Broker, Embedded, Inbox, Json, Message, Outcome, State, inbox_handler,
    sqlx::{self, SqliteConnection, SqlitePool, sqlite::SqliteConnectOptions},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// One row of the measurement: a strategy and what it is known to give.
struct Strategy {
    label: &'static str,
    group: &'static str,
    row: &'static str,
}

const STRATEGIES: [Strategy; 4] = [
    Strategy {
        label: "AT_MOST_ONCE",
        group: "lab-at-most-once",
        row: "first: processed=False committed=True second consumer: nothing delivered handler ran=1 invoices=0",
    },
    Strategy {
        label: "AT_LEAST_ONCE, commit ON_PERSIST",
        group: "lab-on-persist",
        row: "first: processed=False committed=True second consumer: nothing delivered handler ran=1 invoices=0",
    },
    Strategy {
        label: "AT_LEAST_ONCE, commit ON_SUCCESS",
        group: "lab-on-success",
        row: "first: processed=False committed=False second consumer: processed=True handler ran=2 invoices=1",
    },
    Strategy {
        label: "EXACTLY_ONCE_INBOX (default)",
        group: "lab-exactly-once",
        row: "first: processed=False committed=False second consumer: processed=True handler ran=2 invoices=1",
    },
];

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderCreated {
    order_id: String,
}

/// How often a strategy's handler has run.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

/// A handler that writes the invoice and then, on its first run, fails. The same for each strategy.
macro_rules! fails_on_its_first_run {
    ($name:ident, $conn:ty, $($attribute:tt)*) => {
        #[inbox_handler($($attribute)*)]
        async fn $name(tx: &mut $conn, Json(order): Json<OrderCreated>, State(runs): State<Runs>) -> Result<()> {
            sqlx::query("INSERT INTO lab_invoices (order_id) VALUES ($1)")
                .bind(order.order_id)
                .execute(&mut *tx)
                .await?;
            if runs.0.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err("a bug in the second half".into());
            }
            Ok(())
        }
    };
}

fails_on_its_first_run!(
    at_most_once,
    SqliteConnection,
    group = "lab-at-most-once",
    subject = "lab.at-most-once",
    ack = "at_most_once"
);
fails_on_its_first_run!(
    on_persist,
    SqliteConnection,
    group = "lab-on-persist",
    subject = "lab.on-persist",
    ack = "at_least_once",
    commit = "on_persist"
);
fails_on_its_first_run!(
    on_success,
    SqliteConnection,
    group = "lab-on-success",
    subject = "lab.on-success",
    ack = "at_least_once",
    commit = "on_success",
    backoff = "10ms"
);
fails_on_its_first_run!(
    exactly_once,
    SqliteConnection,
    group = "lab-exactly-once",
    subject = "lab.exactly-once",
    backoff = "10ms"
);

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let broker = broker(folder.path())?;
    let pool = database(folder.path()).await?;

    let mut as_expected = true;
    let mut third_column = Vec::new();
    for strategy in &STRATEGIES {
        let (row, invoices) = measure(&broker, &pool, strategy, third_column.is_empty()).await?;
        as_expected &= row == strategy.row;
        third_column.push(format!("invoices={invoices}"));
    }
    println!("The point was the third column. {}.", third_column.join(", "));
    if as_expected {
        Ok(())
    } else {
        Err("a row is not what it should be".into())
    }
}

/// The experiment with one strategy. The first one also says on what it is made.
async fn measure(
    broker: &(impl Broker + Clone),
    pool: &SqlitePool,
    strategy: &Strategy,
    first: bool,
) -> Result<(String, i64)> {
    let order_id = unique(strategy.group)?;
    let order = OrderCreated {
        order_id: order_id.clone(),
    };
    let subject = strategy.group.replacen('-', ".", 1);
    broker
        .publish(Message::json(subject, &order)?.id(order_id.clone()))
        .await?;

    let runs = Runs::default();
    let mut consumer = consumer(broker, pool, strategy, &runs).await?;
    if first {
        for version in consumer.describe() {
            println!("{version}");
        }
        println!("--- one message, a handler that fails on its first run; then a fresh consumer of the same group ---");
    }
    let outcome = consumer.process_one(Duration::from_secs(8)).await?;
    let acked = consumer.report().acked == 1;
    let first = format!(
        "processed={} committed={}",
        python(outcome == Some(Outcome::Processed)),
        python(acked)
    );
    // The consumer takes one delivery, settles it and stops.
    drop(consumer);

    let mut fresh = self::consumer(broker, pool, strategy, &runs).await?;
    let second = match fresh.process_one(patience()).await? {
        Some(outcome) => format!("processed={}", python(outcome == Outcome::Processed)),
        None => "nothing delivered".to_owned(),
    };
    let invoices = invoices(pool, &order_id).await?;
    let row = format!(
        "first: {first} second consumer: {second} handler ran={} invoices={invoices}",
        runs.0.load(Ordering::SeqCst),
    );
    println!("{} {row}", strategy.label);
    Ok((row, invoices))
}

async fn consumer(
    broker: &(impl Broker + Clone),
    pool: &SqlitePool,
    strategy: &Strategy,
    runs: &Runs,
) -> Result<Inbox> {
    let builder = Inbox::builder().store(pool.clone()).broker(broker.clone());
    Ok(builder.groups([strategy.group]).state(runs.clone()).build().await?)
}

/// The broker of `INBOX_BROKER_URL`, else one in the folder.
fn broker(folder: &Path) -> Result<Embedded> {
    let Ok(url) = std::env::var("INBOX_BROKER_URL") else {
        return Ok(Embedded::file(folder.join("broker.db")));
    };
    match url.strip_prefix("embedded:") {
        Some("memory") => Ok(Embedded::memory()),
        Some(path) => Ok(Embedded::file(path.trim_start_matches("//"))),
        None => Err("this program was built for brokers whose URL begins with embedded:".into()),
    }
}

/// How long the fresh consumer waits before nothing counts as delivered. A broker in this process delivers at once, all
/// others get the time of the original measurement.
fn patience() -> Duration {
    match std::env::var("INBOX_BROKER_URL") {
        Ok(url) if !url.starts_with("embedded:") => Duration::from_secs(8),
        _ => Duration::from_secs(1),
    }
}

/// The database of `DATABASE_URL`, else one in the folder, with a table of invoices. It has no key, so that a second
/// invoice would show.
async fn database(folder: &Path) -> Result<SqlitePool> {
    let options = match std::env::var("DATABASE_URL") {
        Ok(url) => url.parse()?,
        Err(_) => SqliteConnectOptions::new().filename(folder.join("app.db")),
    };
    let pool = SqlitePool::connect_with(options.create_if_missing(true)).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS lab_invoices (order_id TEXT NOT NULL)")
        .execute(&pool)
        .await?;
    Ok(pool)
}

/// How many invoices an order has.
async fn invoices(pool: &SqlitePool, order_id: &str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT count(*) FROM lab_invoices WHERE order_id = $1")
        .bind(order_id)
        .fetch_one(pool)
        .await
}

/// An id that no earlier run on this broker and database has used.
fn unique(name: &str) -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(format!("{name}-{}", now.as_nanos()))
}

/// A boolean as the original measurement printed it.
fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
