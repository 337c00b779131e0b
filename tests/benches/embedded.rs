//! The embedded broker in figures: fresh messages a second into SQLite, how long a message takes to its handler, and the size
//! of the file after a hundred thousand messages.
//!
//! ```text
//! cargo bench -p inbox-tests --bench embedded
//! ```
//!
//! The files lie in the folder of `TMPDIR`: what is measured is its disk too.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use inbox_runtime::{
    Broker, Bytes, Embedded, Inbox, Lease, Message, Source, Subscription, inbox_handler,
    sqlx::{
        self, Connection, SqliteConnection, SqlitePool,
        sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
    },
};
use parking_lot::Mutex;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What makes this program the process that publishes.
const PUBLISHER: &str = "INBOX_BENCH_PUBLISH_TO";
const ROUNDS: u32 = 300;

/// From the publishing to the handler, of each message.
static TIMES: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

#[inbox_handler(group = "fresh", subject = "order.created", concurrency = 16)]
async fn fresh(tx: &mut SqliteConnection, payload: Bytes) -> Result<(), sqlx::Error> {
    let insert = sqlx::query("INSERT INTO invoices (order_id) VALUES (?)").bind(payload.to_vec());
    insert.execute(tx).await?;
    Ok(())
}

#[inbox_handler(group = "latency", subject = "clock")]
async fn latency(tx: &mut SqliteConnection, payload: Bytes) -> Result<(), inbox_runtime::HandlerError> {
    sqlx::query("SELECT 1").execute(tx).await?;
    let sent: u64 = String::from_utf8_lossy(&payload)
        .parse()
        .map_err(std::io::Error::other)?;
    let took = now().saturating_sub(Duration::from_nanos(sent));
    TIMES.lock().push(took);
    Ok(())
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

async fn pool(folder: &Path) -> Result<SqlitePool, Error> {
    let options = SqliteConnectOptions::new()
        .filename(folder.join("app.db"))
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS invoices (order_id)")
        .execute(&pool)
        .await?;
    Ok(pool)
}

/// Puts messages into the file, faster than by publishing each.
async fn fill(file: &Path, messages: i64) -> Result<(), Error> {
    let options = SqliteConnectOptions::new().filename(file);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    sqlx::query(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) \
         INSERT INTO messages (subject, published_at, headers, payload) \
         SELECT 'order.created', 0, CAST('[]' AS BLOB), randomblob(300) FROM n",
    )
    .bind(messages)
    .execute(&mut connection)
    .await?;
    connection.close().await?;
    Ok(())
}

/// Fresh messages a second, from the first pull to the last acknowledgement.
async fn throughput(messages: u32) -> Result<f64, Error> {
    let folder = tempfile::tempdir()?;
    let pool = pool(folder.path()).await?;
    let broker = Embedded::file(folder.path().join("broker.db"));
    for number in 0..messages {
        let message = Message::new("order.created", number.to_string()).id(format!("order-{number}"));
        broker.publish(message).await?;
    }
    let start = Instant::now();
    let inbox = Inbox::builder()
        .store(pool)
        .broker(broker.clone())
        .groups(["fresh"])
        .spawn()
        .await?;
    while broker
        .consumer("fresh", "order.created")
        .await?
        .is_none_or(|group| !group.is_idle())
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = start.elapsed();
    inbox.stop();
    let report = inbox.join().await?;
    if report.processed != u64::from(messages) {
        return Err(format!("not a clean run: {report}").into());
    }
    Ok(f64::from(messages) / took.as_secs_f64())
}

/// Commits of one row a second by one connection, each on the disk before the next begins: what is possible with a transaction for
/// each message.
async fn commits(count: u32) -> Result<f64, Error> {
    let folder = tempfile::tempdir()?;
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("app.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    sqlx::raw_sql("CREATE TABLE invoices (order_id)")
        .execute(&mut connection)
        .await?;
    let start = Instant::now();
    for number in 0..count {
        sqlx::query("INSERT INTO invoices (order_id) VALUES (?)")
            .bind(number)
            .execute(&mut connection)
            .await?;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    connection.close().await?;
    Ok(rate)
}

async fn publish_clock(broker: &Embedded) -> Result<(), Error> {
    for round in 0..ROUNDS {
        let message =
            Message::new("clock", now().as_nanos().to_string()).id(format!("clock-{}-{round}", std::process::id()));
        broker.publish(message).await?;
        tokio::time::sleep(Duration::from_millis(17)).await;
    }
    Ok(())
}

/// The median and the 99th percentile, in milliseconds.
async fn latencies(between_processes: bool) -> Result<(f64, f64), Error> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("broker.db");
    let pool = pool(folder.path()).await?;
    let broker = Embedded::file(&file);
    let inbox = Inbox::builder()
        .store(pool)
        .broker(broker.clone())
        .groups(["latency"])
        .spawn()
        .await?;
    if between_processes {
        let mut publisher = Command::new(std::env::current_exe()?);
        let mut publisher = publisher.env(PUBLISHER, &file).stdout(Stdio::null()).spawn()?;
        tokio::task::spawn_blocking(move || publisher.wait()).await??;
    } else {
        publish_clock(&broker).await?;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    inbox.stop();
    inbox.join().await?;
    let mut times = std::mem::take(&mut *TIMES.lock());
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    Ok((at(50).as_secs_f64() * 1e3, at(99).as_secs_f64() * 1e3))
}

/// The size of the file in MiB: full, and after its messages were settled and deleted.
async fn sizes(messages: i64) -> Result<(f64, f64), Error> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("broker.db");
    let broker = Embedded::file(&file).keep_forever();
    let mut source = broker
        .subscribe(vec![Subscription::new("size", "order.created")])
        .await?
        .remove(0);
    fill(&file, messages).await?;
    loop {
        let pulled = source.pull(1000, Duration::ZERO).await?;
        if pulled.is_empty() {
            break;
        }
        futures_util::future::try_join_all(pulled.iter().map(|(_, lease)| lease.ack())).await?;
    }
    #[expect(clippy::cast_precision_loss, reason = "sizes of files are small")]
    let size = || std::fs::metadata(&file).map_or(0.0, |found| found.len() as f64 / (1024.0 * 1024.0));
    let full = size();
    let broker = broker.keep_for(Duration::ZERO);
    let mut swept = size();
    for _ in 0..400 {
        broker.publish(Message::new("other", "x")).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        swept = size();
        if swept < full / 20.0 {
            break;
        }
    }
    Ok((full, swept))
}

/// The share of a processor that an inbox uses while nothing comes.
async fn idle() -> Result<f64, Error> {
    let folder = tempfile::tempdir()?;
    let pool = pool(folder.path()).await?;
    let broker = Embedded::file(folder.path().join("broker.db"));
    let inbox = Inbox::builder().store(pool).broker(broker).spawn().await?;
    let used = || -> Result<f64, Error> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks = |index: usize| {
            after_name
                .split_whitespace()
                .nth(index)
                .and_then(|text| text.parse::<f64>().ok())
        };
        Ok(ticks(11)
            .zip(ticks(12))
            .map_or(0.0, |(user, system)| (user + system) / 100.0))
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = used()?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let share = (used()? - before) / 10.0;
    inbox.stop();
    inbox.join().await?;
    Ok(share)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    if let Some(file) = std::env::var_os(PUBLISHER) {
        return publish_clock(&Embedded::file(file)).await;
    }
    for _ in 0..3 {
        let (commits, rate) = (commits(2_000).await?, throughput(5_000).await?);
        let ratio = rate / commits;
        println!(
            "fresh messages a second into SQLite, concurrency 16: {rate:.0}, {ratio:.2} of the {commits:.0} commits that the \
             disk takes"
        );
    }
    let (median, high) = latencies(false).await?;
    println!("publish to handler within one process: p50 {median:.2} ms, p99 {high:.2} ms");
    let (median, high) = latencies(true).await?;
    println!("publish to handler between two processes: p50 {median:.2} ms, p99 {high:.2} ms");
    let (full, swept) = sizes(100_000).await?;
    println!("file with 100,000 messages: {full:.1} MiB, settled and deleted: {swept:.1} MiB");
    println!("processor while idle, two handlers: {:.2} %", idle().await? * 100.0);
    Ok(())
}
