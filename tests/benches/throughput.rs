//! How many messages a second the pipeline carries into PostgreSQL, beside pgbench with the same four statements.
//!
//! ```text
//! cargo run --release -p inbox-tests --bin servers -- postgres -- cargo bench -p inbox-tests --features postgres --bench throughput
//! ```
//!
//! Both run in turn, several rounds each, on the server of `DATABASE_URL`; the medians are compared, since single rounds
//! swing. The messages come from memory, so that what is measured is ours and the database's. `INBOX_BENCH_ROUNDS` (5) and
//! `INBOX_BENCH_SECONDS` (3, of one round) make it longer or shorter.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_runtime::{
    Broker, BrokerError, Bytes, Delivery, Inbox, Json, Lease, Message, Outcome, Published, Source, Subscription,
    inbox_handler,
    sqlx::{self, Executor, PgConnection, PgPool, postgres::PgPoolOptions},
};

use inbox_tests::servers::Proxy;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(serde::Deserialize)]
struct Order {
    order_id: i64,
    amount_cents: i64,
}

async fn invoice(tx: &mut PgConnection, order: Order) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

macro_rules! handler {
    ($name:ident, $concurrency:literal, $($attribute:tt)*) => {
        #[inbox_handler(subject = "order.created", concurrency = $concurrency, $($attribute)*)]
        async fn $name(tx: &mut PgConnection, Json(order): Json<Order>) -> Result<(), sqlx::Error> {
            invoice(tx, order).await
        }
    };
}

handler!(once_1, 1, group = "once-1");
handler!(once_4, 4, group = "once-4");
handler!(once_16, 16, group = "once-16");
handler!(plain_1, 1, group = "plain-1", ack = "at_least_once");
handler!(plain_4, 4, group = "plain-4", ack = "at_least_once");
handler!(plain_16, 16, group = "plain-16", ack = "at_least_once");

/// Makes messages as fast as they are asked for, until it is told to stop. Ids repeat after `distinct`.
#[derive(Clone)]
struct Feed(Arc<Tap>);

struct Tap {
    next: AtomicU64,
    distinct: u64,
    open: AtomicBool,
}

impl Feed {
    fn new(first: u64, distinct: u64) -> Self {
        Self(Arc::new(Tap {
            next: AtomicU64::new(first),
            distinct,
            open: AtomicBool::new(true),
        }))
    }

    fn close(&self) {
        self.0.open.store(false, Ordering::Relaxed);
    }

    fn delivery(&self) -> Delivery {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.distinct;
        let mut delivery = Delivery::new("order.created", number.to_string());
        delivery.headers.append("message_id", format!("evt-{number}"));
        delivery.payload = Some(Bytes::from(format!(r#"{{"order_id":{number},"amount_cents":100}}"#)));
        delivery
    }
}

struct Done;

impl Lease for Done {
    async fn ack(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn ack_confirmed(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn nak(&self, _delay: Duration) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        Ok(())
    }
}

impl Source for Feed {
    type Lease = Done;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Done)>, BrokerError> {
        if self.0.open.load(Ordering::Relaxed) {
            return Ok((0..max).map(|_| (self.delivery(), Done)).collect());
        }
        tokio::time::sleep(wait).await;
        Ok(Vec::new())
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_secs(30)
    }
}

impl Broker for Feed {
    type Source = Self;

    async fn describe(&self) -> Result<String, BrokerError> {
        Ok("memory".to_owned())
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self>, BrokerError> {
        Ok(subscriptions.iter().map(|_| self.clone()).collect())
    }

    async fn publish(&self, _message: Message) -> Result<Published, BrokerError> {
        Err(BrokerError::Invalid("nothing is published in the bench".to_owned()))
    }
}

/// Messages a second of one group with that outcome.
async fn ours(pool: &PgPool, group: &str, feed: Feed, time: Duration, outcome: Outcome) -> Result<f64, Error> {
    let inbox = Inbox::builder()
        .store(pool.clone())
        .broker(feed.clone())
        .groups([group])
        .build()
        .await?;
    let start = Instant::now();
    let inbox = inbox.spawn();
    tokio::time::sleep(time).await;
    feed.close();
    inbox.stop();
    let report = inbox.join().await?;
    let elapsed = start.elapsed();
    if report.count(outcome) == 0 || report.failed + report.deferred + report.dead_lettered > 0 {
        return Err(format!("not a clean run: {report}").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of messages are small")]
    Ok(report.count(outcome) as f64 / elapsed.as_secs_f64())
}

/// Transactions a second of pgbench.
fn pgbench(url: &str, mode: &str, connections: u32, time: Duration, script: &std::path::Path) -> Result<f64, Error> {
    let output = Command::new(std::env::var("PGBENCH").unwrap_or_else(|_| find_pgbench()))
        .args([
            "-n",
            "-M",
            mode,
            "-c",
            &connections.to_string(),
            "-j",
            &connections.min(2).to_string(),
        ])
        .args(["-T", &time.as_secs().max(1).to_string(), "-f"])
        .arg(script)
        .arg(url)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
}

/// pgbench is on the path, or where Debian puts it.
fn find_pgbench() -> String {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    debian
        .map(|version| version.path().join("bin/pgbench"))
        .find(|path| path.exists())
        .map_or_else(|| "pgbench".to_owned(), |path| path.display().to_string())
}

const SCRIPT: &str = r"\set id random(1, 9000000000000000000)
BEGIN;
INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('pgbench', 'evt-' || :id, 1) ON CONFLICT (consumer_group, message_id) DO NOTHING;
INSERT INTO invoices (order_id, amount_cents) VALUES (:id, 100);
COMMIT;
";

/// The medians of one number of connections.
#[derive(Default)]
struct Rates {
    simple: Vec<f64>,
    prepared: Vec<f64>,
    fresh: Vec<f64>,
    duplicate: Vec<f64>,
    plain: Vec<f64>,
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

async fn round(
    url: &str,
    connections: u32,
    time: Duration,
    script: &std::path::Path,
    rates: &mut Rates,
) -> Result<(), Error> {
    let pool = PgPoolOptions::new()
        .max_connections(connections + 1)
        .connect(url)
        .await?;
    pool.execute("TRUNCATE inbox_events, invoices").await?;
    rates.simple.push(pgbench(url, "simple", connections, time, script)?);
    pool.execute("TRUNCATE inbox_events, invoices").await?;
    let group = format!("once-{connections}");
    rates
        .fresh
        .push(ours(&pool, &group, Feed::new(0, u64::MAX), time, Outcome::Processed).await?);
    // The first thousand messages are there by now.
    rates
        .duplicate
        .push(ours(&pool, &group, Feed::new(0, 500), time, Outcome::Duplicate).await?);
    pool.execute("TRUNCATE inbox_events, invoices").await?;
    let group = format!("plain-{connections}");
    rates
        .plain
        .push(ours(&pool, &group, Feed::new(0, u64::MAX), time, Outcome::Processed).await?);
    pool.execute("TRUNCATE inbox_events, invoices").await?;
    rates
        .prepared
        .push(pgbench(url, "prepared", connections, time, script)?);
    pool.close().await;
    Ok(())
}

/// How often a message waits for the server, told by a proxy that counts the server's "ready for query".
async fn round_trips(url: &str, time: Duration) -> Result<(f64, f64, f64), Error> {
    let port = url
        .rsplit(':')
        .next()
        .and_then(|rest| rest.split('/').next()?.parse().ok());
    let proxy = Proxy::before(port.ok_or("DATABASE_URL has no port")?).await;
    let pool = PgPoolOptions::new().max_connections(2).connect(&proxy.url(url)).await?;
    pool.execute("TRUNCATE inbox_events, invoices").await?;
    let mut counts = Vec::new();
    for (group, feed, outcome) in [
        ("once-1", Feed::new(0, u64::MAX), Outcome::Processed),
        ("once-1", Feed::new(0, 100), Outcome::Duplicate),
        ("plain-1", Feed::new(0, u64::MAX), Outcome::Processed),
    ] {
        let before = proxy.round_trips();
        let start = Instant::now();
        let rate = ours(&pool, group, feed, time, outcome).await?;
        let messages = rate * start.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "counts of round trips are small")]
        counts.push((proxy.round_trips() - before) as f64 / messages);
    }
    pool.close().await;
    Ok((counts[0], counts[1], counts[2]))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Error> {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        println!("there is no DATABASE_URL, so nothing is measured; see the head of tests/benches/throughput.rs");
        return Ok(());
    };
    let rounds = setting("INBOX_BENCH_ROUNDS", 5);
    let time = Duration::from_secs(setting("INBOX_BENCH_SECONDS", 3));
    let pool = PgPool::connect(&url).await?;
    inbox_runtime::migrate(&pool).await?;
    pool.execute("DROP TABLE IF EXISTS invoices; CREATE TABLE invoices (order_id bigint, amount_cents bigint)")
        .await?;
    let (version, fsync): (String, String) =
        sqlx::query_as("SELECT current_setting('server_version'), current_setting('fsync')")
            .fetch_one(&pool)
            .await?;
    pool.close().await;
    println!(
        "PostgreSQL {version}, fsync {fsync}, {rounds} rounds of {} s each, medians",
        time.as_secs()
    );

    let folder = tempfile::tempdir()?;
    let script = folder.path().join("message.sql");
    std::fs::write(&script, SCRIPT)?;
    let mut ratios = Vec::new();
    for connections in [1, 4, 16] {
        let mut rates = Rates::default();
        for _ in 0..rounds {
            round(&url, connections, time, &script, &mut rates).await?;
        }
        let (simple, prepared) = (median(&rates.simple), median(&rates.prepared));
        let (fresh, duplicate, plain) = (median(&rates.fresh), median(&rates.duplicate), median(&rates.plain));
        println!(
            "{connections:>2} connections: pgbench simple {simple:.0}/s, prepared {prepared:.0}/s; exactly_once {fresh:.0}/s, \
             duplicates {duplicate:.0}/s, at_least_once {plain:.0}/s"
        );
        ratios.push(format!("ratio postgres/fresh/{connections} = {:.2}", fresh / simple));
        ratios.push(format!(
            "ratio postgres/duplicate/{connections} = {:.2}",
            duplicate / fresh
        ));
        ratios.push(format!(
            "ratio postgres/at_least_once/{connections} = {:.2}",
            plain / simple
        ));
    }
    let (fresh, duplicate, plain) = round_trips(&url, time).await?;
    println!(
        "round trips a message, start and end of the session included: exactly_once {fresh:.2}, duplicates \
         {duplicate:.2}, at_least_once {plain:.2}"
    );
    println!("{}", ratios.join("\n"));
    Ok(())
}
