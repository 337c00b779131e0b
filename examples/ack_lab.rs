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
//! folder. Its exit status is 0 if every value is what it should be. On NATS and PostgreSQL, which this starts:
//!
//! ```text
//! cargo run -p inbox-tests --bin servers -- postgres nats -- \
//!     cargo run -p inbox-examples --features nats,postgres --example ack_lab
//! ```
//!
//! and on Kafka and PostgreSQL, as the original measurement was made, with `kafka` in the place of `nats`.

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
    Broker, Inbox, InboxBuilder, IntoStore, Json, Message, Outcome, State, inbox_handler,
    sqlx::{self, Connection},
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

/// The handlers of a database, one of each strategy, and what the measurement needs of it besides.
macro_rules! database {
    ($module:ident, $conn:ty, $pool:ty) => {
        mod $module {
            use super::*;

            fails_on_its_first_run!(
                at_most_once,
                $conn,
                group = "lab-at-most-once",
                subject = "lab.at-most-once",
                ack = "at_most_once"
            );
            fails_on_its_first_run!(
                on_persist,
                $conn,
                group = "lab-on-persist",
                subject = "lab.on-persist",
                ack = "at_least_once",
                commit = "on_persist"
            );
            fails_on_its_first_run!(
                on_success,
                $conn,
                group = "lab-on-success",
                subject = "lab.on-success",
                ack = "at_least_once",
                commit = "on_success",
                backoff = "10ms"
            );
            fails_on_its_first_run!(
                exactly_once,
                $conn,
                group = "lab-exactly-once",
                subject = "lab.exactly-once",
                backoff = "10ms"
            );

            /// Measures on the database of that URL.
            pub(super) async fn measure<B: Broker + Clone>(broker: &B, url: &str) -> Result<()> {
                // The table has no key, so that a second invoice would show.
                sqlx::query("CREATE TABLE IF NOT EXISTS lab_invoices (order_id TEXT NOT NULL)")
                    .execute(&mut <$conn>::connect(url).await?)
                    .await?;
                let pool = <$pool>::connect(url).await?;
                let invoices = async |order_id: String| {
                    let count = sqlx::query_scalar("SELECT count(*) FROM lab_invoices WHERE order_id = $1");
                    count.bind(order_id).fetch_one(&pool).await
                };
                super::measure_all(broker, &pool, stringify!($module), invoices).await
            }
        }
    };
}

#[cfg(feature = "sqlite")]
database!(sqlite, sqlx::SqliteConnection, sqlx::SqlitePool);
#[cfg(feature = "postgres")]
database!(postgres, sqlx::PgConnection, sqlx::PgPool);

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // A broker or a database is added by a line.
    let url = url("INBOX_BROKER_URL", "embedded:", &folder.path().join("broker.db"));
    match url.split(':').next() {
        #[cfg(feature = "embedded")]
        Some("embedded") => on(folder.path(), embedded(&url)).await,
        #[cfg(feature = "nats")]
        Some("nats" | "tls") => {
            on(
                folder.path(),
                inbox_runtime::Nats::new(&url)?.create_stream("LAB", ["lab.*"]),
            )
            .await
        }
        #[cfg(feature = "kafka")]
        Some("kafka") => {
            let topics = STRATEGIES.iter().map(|strategy| strategy.group.replacen('-', ".", 1));
            let kafka = topics.fold(inbox_runtime::Kafka::new(&url), |kafka, topic| {
                kafka.create_topic(topic, 1)
            });
            on(folder.path(), kafka).await
        }
        _ => Err("this program was built without the broker that INBOX_BROKER_URL names".into()),
    }
}

/// Measures with that broker.
async fn on<B: Broker + Clone>(folder: &Path, broker: B) -> Result<()> {
    let url = url("DATABASE_URL", "sqlite://", &folder.join("app.db"));
    match url.split(':').next() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") if url.contains('?') => sqlite::measure(&broker, &url).await,
        #[cfg(feature = "sqlite")]
        Some("sqlite") => sqlite::measure(&broker, &format!("{url}?mode=rwc")).await,
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => postgres::measure(&broker, &url).await,
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

/// The experiment with each strategy, on the handlers of one database.
async fn measure_all<B, P>(
    broker: &B,
    pool: &P,
    database: &'static str,
    invoices: impl AsyncFn(String) -> Result<i64, sqlx::Error>,
) -> Result<()>
where
    B: Broker + Clone,
    P: IntoStore + Clone + Send + 'static,
{
    let mut as_expected = true;
    let mut third_column = Vec::new();
    for strategy in &STRATEGIES {
        let consumer = |runs: &Runs| {
            let builder = Inbox::builder().store(pool.clone()).broker(broker.clone());
            builder
                .groups([strategy.group])
                .select(move |meta| meta.name.split("::").any(|part| part == database))
                .state(runs.clone())
        };
        let order_id = unique(strategy.group)?;
        publish(broker, strategy, &order_id).await?;
        let observed = observe(consumer, third_column.is_empty()).await?;
        let invoices = invoices(order_id).await?;
        let row = format!("{observed} invoices={invoices}");
        println!("{} {row}", strategy.label);
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

async fn publish(broker: &impl Broker, strategy: &Strategy, order_id: &str) -> Result<()> {
    let order = OrderCreated {
        order_id: order_id.to_owned(),
    };
    let subject = strategy.group.replacen('-', ".", 1);
    let message = Message::json(subject, &order)?.id(order_id.to_owned());
    broker.publish(message).await?;
    Ok(())
}

/// What two consumers, one after the other, make of the message. The first one of all also says on what it is made.
async fn observe(consumer: impl Fn(&Runs) -> InboxBuilder, describe: bool) -> Result<String> {
    let runs = Runs::default();
    let mut stopped = consumer(&runs).build().await?;
    if describe {
        for version in stopped.describe() {
            println!("{version}");
        }
        println!("--- one message, a handler that fails on its first run; then a fresh consumer of the same group ---");
    }
    let outcome = stopped.process_one(Duration::from_secs(8)).await?;
    let first = format!(
        "processed={} committed={}",
        python(outcome == Some(Outcome::Processed)),
        python(stopped.report().acked == 1)
    );
    // The consumer takes one delivery, settles it and stops.
    drop(stopped);

    let mut fresh = consumer(&runs).build().await?;
    let second = match fresh.process_one(patience()).await? {
        Some(outcome) => format!("processed={}", python(outcome == Outcome::Processed)),
        None => "nothing delivered".to_owned(),
    };
    let ran = runs.0.load(Ordering::SeqCst);
    Ok(format!("first: {first} second consumer: {second} handler ran={ran}"))
}

/// How long the fresh consumer waits before nothing counts as delivered. A broker that gives a message back at once needs
/// less than the original measurement took.
fn patience() -> Duration {
    let broker = std::env::var("INBOX_BROKER_URL").unwrap_or_default();
    match broker.split(':').next() {
        Some("" | "embedded") => Duration::from_secs(1),
        Some("nats" | "tls" | "kafka") => Duration::from_secs(2),
        _ => Duration::from_secs(8),
    }
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
