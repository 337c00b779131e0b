//! How many messages a second the pipeline carries into PostgreSQL, beside pgbench with the same four statements.
//!
//! ```text
//! cargo run --release -p inbox-tests --bin servers -- postgres -- cargo bench -p inbox-tests --features postgres --bench throughput
//! ```
//!
//! Both run in turn, several rounds each, on the server of `DATABASE_URL`; the medians are compared, since single rounds
//! swing. The messages come from memory, so that what is measured is ours and the database's. `INBOX_BENCH_ROUNDS` (5) and
//! `INBOX_BENCH_SECONDS` (3, of one round) make it longer or shorter;
//! `INBOX_BENCH_CONNECTIONS` (1,4,16) says how many there are.
//!
//! With `--features postgres,nats` and the server `nats` besides, the same handlers also take their messages from a
//! JetStream stream on the disk, from the first request to the last acknowledgement: `nats-postgres`. With `kafka` in both
//! places, from a Kafka topic of eight partitions: `kafka-postgres`.
//!
//! At the end each broker's time from `publish` to the handler is printed, p50 and p99, and what 20 idle handlers cost. With
//! `INBOX_BENCH_ROUNDS=0` there is only that.

use std::time::{Duration, Instant};

use inbox_runtime::{
    Broker, Inbox, InboxHandle, Json, Outcome, inbox_handler,
    sqlx::{self, Executor, PgConnection, PgPool, postgres::PgPoolOptions},
};

use inbox_tests::servers::Proxy;

mod feed;
#[cfg(feature = "kafka")]
mod kafka;
mod latency;
#[cfg(feature = "nats")]
mod nats;
mod pgbench;

use feed::Feed;
use pgbench::{SCRIPT, pgbench};

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

/// A broker from which messages take the whole way into the database.
#[cfg(any(feature = "nats", feature = "kafka"))]
trait Way: Sized {
    const NAME: &'static str;
    type Broker: Broker;

    /// A broker with so many messages on it and nothing else, if there is a server.
    async fn filled(count: u64) -> Result<Option<Self::Broker>, Error>;
}

/// What a run came to.
#[derive(Clone, Copy)]
struct Rate {
    /// Messages a second.
    messages: f64,
    /// Processor time of this process a message, in microseconds; that of the servers is not in it.
    cpu: f64,
}

/// The rate of one group with that outcome, from a broker that never runs dry.
async fn measure(
    pool: &PgPool,
    group: &str,
    broker: impl Broker,
    time: Duration,
    outcome: Outcome,
    stop: impl FnOnce(&InboxHandle),
) -> Result<Rate, Error> {
    let builder = Inbox::builder().store(pool.clone()).broker(broker).groups([group]);
    let inbox = builder.build().await?;
    let (start, cpu) = (Instant::now(), latency::cpu()?);
    let inbox = inbox.spawn();
    tokio::time::sleep(time).await;
    let counted = inbox.report().count(outcome);
    let (elapsed, cpu) = (start.elapsed(), latency::cpu()? - cpu);
    stop(&inbox);
    let report = inbox.join().await?;
    if counted == 0 || report.failed + report.deferred + report.dead_lettered > 0 {
        return Err(format!("not a clean run: {report}").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of messages are small")]
    let counted = counted as f64;
    Ok(Rate {
        messages: counted / elapsed.as_secs_f64(),
        cpu: cpu.as_secs_f64() * 1e6 / counted,
    })
}

/// The same from memory.
async fn ours(pool: &PgPool, group: &str, feed: Feed, time: Duration, outcome: Outcome) -> Result<Rate, Error> {
    let tap = feed.clone();
    measure(pool, group, feed, time, outcome, |inbox| {
        tap.close();
        inbox.stop();
    })
    .await
}

/// The rates from a broker's server: exactly_once and at_least_once.
#[cfg(any(feature = "nats", feature = "kafka"))]
async fn whole_way<W: Way>(pool: &PgPool, connections: u32, time: Duration) -> Result<Option<(Rate, Rate)>, Error> {
    // More than can be handled in that time.
    let count = 15_000 * time.as_secs().max(1);
    let mut rates = Vec::new();
    for group in ["once", "plain"] {
        pool.execute("TRUNCATE inbox_events, invoices").await?;
        let Some(broker) = W::filled(count).await? else {
            return Ok(None);
        };
        let group = format!("{group}-{connections}");
        rates.push(measure(pool, &group, broker, time, Outcome::Processed, InboxHandle::stop).await?);
    }
    Ok(Some((rates[0], rates[1])))
}

/// The medians of one number of connections.
#[derive(Default)]
struct Rates {
    simple: Vec<f64>,
    prepared: Vec<f64>,
    fresh: Vec<Rate>,
    duplicate: Vec<Rate>,
    plain: Vec<Rate>,
    #[cfg(feature = "nats")]
    nats: Vec<(Rate, Rate)>,
    #[cfg(feature = "kafka")]
    kafka: Vec<(Rate, Rate)>,
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The median rate, and the median of the processor time.
fn medians(rates: &[Rate]) -> Rate {
    let of = |value: fn(&Rate) -> f64| median(&rates.iter().map(value).collect::<Vec<_>>());
    Rate {
        messages: of(|rate| rate.messages),
        cpu: of(|rate| rate.cpu),
    }
}

/// What the rates of a broker's server come to.
#[cfg(any(feature = "nats", feature = "kafka"))]
fn whole_way_ratios<W: Way>(connections: u32, rates: &[(Rate, Rate)], simple: f64) -> Vec<String> {
    if rates.is_empty() {
        return Vec::new();
    }
    let (fresh, plain): (Vec<_>, Vec<_>) = rates.iter().copied().unzip();
    let (fresh, plain) = (medians(&fresh), medians(&plain));
    println!(
        "{connections:>2} connections, {}: exactly_once {:.0}/s, {:.0} µs of this process each; at_least_once {:.0}/s, {:.0} µs",
        W::NAME,
        fresh.messages,
        fresh.cpu,
        plain.messages,
        plain.cpu
    );
    vec![
        format!(
            "ratio {}-postgres/fresh/{connections} = {:.2}",
            W::NAME,
            fresh.messages / simple
        ),
        format!(
            "ratio {}-postgres/at_least_once/{connections} = {:.2}",
            W::NAME,
            plain.messages / simple
        ),
    ]
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
    #[cfg(feature = "nats")]
    rates
        .nats
        .extend(whole_way::<nats::JetStream>(&pool, connections, time).await?);
    #[cfg(feature = "kafka")]
    rates
        .kafka
        .extend(whole_way::<kafka::Topic>(&pool, connections, time).await?);
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
        let rate = ours(&pool, group, feed, time, outcome).await?.messages;
        let messages = rate * start.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "counts of round trips are small")]
        counts.push((proxy.round_trips() - before) as f64 / messages);
    }
    pool.close().await;
    Ok((counts[0], counts[1], counts[2]))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Error> {
    if latency::is_publisher().await? {
        return Ok(());
    }
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

    if rounds > 0 {
        throughput(&url, rounds, time).await?;
    }
    latency::run(&url).await
}

/// The rates and their ratios, from the database alone and from each broker.
async fn throughput(url: &str, rounds: u64, time: Duration) -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("message.sql");
    std::fs::write(&script, SCRIPT)?;
    let mut ratios = Vec::new();
    let numbers = std::env::var("INBOX_BENCH_CONNECTIONS").unwrap_or_else(|_| "1,4,16".to_owned());
    for connections in numbers.split(',') {
        let connections: u32 = connections.parse()?;
        let mut rates = Rates::default();
        for _ in 0..rounds {
            round(url, connections, time, &script, &mut rates).await?;
        }
        let (simple, prepared) = (median(&rates.simple), median(&rates.prepared));
        let (fresh, duplicate, plain) = (medians(&rates.fresh), medians(&rates.duplicate), medians(&rates.plain));
        println!(
            "{connections:>2} connections: pgbench simple {simple:.0}/s, prepared {prepared:.0}/s; exactly_once {:.0}/s, {:.0} µs \
             of this process each; duplicates {:.0}/s, {:.0} µs; at_least_once {:.0}/s, {:.0} µs",
            fresh.messages, fresh.cpu, duplicate.messages, duplicate.cpu, plain.messages, plain.cpu
        );
        ratios.push(format!(
            "ratio postgres/fresh/{connections} = {:.2}",
            fresh.messages / simple
        ));
        ratios.push(format!(
            "ratio postgres/duplicate/{connections} = {:.2}",
            duplicate.messages / fresh.messages
        ));
        ratios.push(format!(
            "ratio postgres/at_least_once/{connections} = {:.2}",
            plain.messages / simple
        ));
        #[cfg(feature = "nats")]
        ratios.extend(whole_way_ratios::<nats::JetStream>(connections, &rates.nats, simple));
        #[cfg(feature = "kafka")]
        ratios.extend(whole_way_ratios::<kafka::Topic>(connections, &rates.kafka, simple));
    }
    let (fresh, duplicate, plain) = round_trips(url, time).await?;
    println!(
        "round trips a message, start and end of the session included: exactly_once {fresh:.2}, duplicates \
         {duplicate:.2}, at_least_once {plain:.2}"
    );
    println!("{}", ratios.join("\n"));
    Ok(())
}
