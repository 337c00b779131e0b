//! How long a message takes from the call that publishes it to its handler, and what an inbox costs while nothing comes.
#![allow(clippy::unused_async, reason = "a handler is async, whether it waits or not")]

use std::{
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use inbox_runtime::{
    Broker, Embedded, Inbox, Json, Message, inbox_handler,
    sqlx::{self, PgConnection, PgPool, postgres::PgPoolOptions},
};
use parking_lot::Mutex;

use crate::Error;

/// Messages of one measurement; those that come first don't count.
const MESSAGES: usize = 220;
const WARM_UP: usize = 20;
/// The time between two messages.
const PACE: Duration = Duration::from_millis(25);
/// How long the idle inbox is looked at.
const IDLE: Duration = Duration::from_secs(5);
const SUBJECT: &str = "latency.sent";
/// Set in the process that only publishes: the embedded broker's file.
const PUBLISHER: &str = "INBOX_BENCH_PUBLISH";

static TOOK: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

#[derive(serde::Deserialize)]
struct Sent {
    /// Nanoseconds since 1970.
    at: u64,
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

#[inbox_handler(group = "latency", subject = "latency.sent")]
async fn sent(_tx: &mut PgConnection, Json(sent): Json<Sent>) -> Result<(), sqlx::Error> {
    let took = Duration::from_nanos(now().saturating_sub(sent.at));
    TOOK.lock().push(took);
    Ok(())
}

macro_rules! idle {
    ($($name:ident $group:literal),*) => {
        $(
            #[inbox_handler(group = $group, subject = "latency.sent")]
            async fn $name(_tx: &mut PgConnection, _sent: Json<Sent>) -> Result<(), sqlx::Error> {
                Ok(())
            }
        )*
        const GROUPS: [&str; 20] = [$($group),*];
    };
}

idle!(
    i01 "idle-01", i02 "idle-02", i03 "idle-03", i04 "idle-04", i05 "idle-05", i06 "idle-06", i07 "idle-07", i08 "idle-08",
    i09 "idle-09", i10 "idle-10", i11 "idle-11", i12 "idle-12", i13 "idle-13", i14 "idle-14", i15 "idle-15", i16 "idle-16",
    i17 "idle-17", i18 "idle-18", i19 "idle-19", i20 "idle-20"
);

async fn publish(broker: &impl Broker) -> Result<(), Error> {
    for _ in 0..MESSAGES {
        let payload = format!(r#"{{"at":{}}}"#, now());
        broker.publish(Message::new(SUBJECT, payload)).await?;
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

/// Publishes and returns true in a process that is there for that.
pub(crate) async fn is_publisher() -> Result<bool, Error> {
    let Ok(file) = std::env::var(PUBLISHER) else {
        return Ok(false);
    };
    publish(&Embedded::file(file)).await?;
    Ok(true)
}

/// Measures while `publishing` publishes.
async fn measured(
    name: &str,
    pool: &PgPool,
    broker: impl Broker,
    publishing: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    TOOK.lock().clear();
    let builder = Inbox::builder().store(pool.clone()).broker(broker).groups(["latency"]);
    let inbox = builder.spawn().await?;
    while !inbox.health().ready {
        tokio::time::sleep(PACE).await;
    }
    publishing.await?;
    let start = Instant::now();
    let mut took = loop {
        let took = TOOK.lock().clone();
        if took.len() >= MESSAGES {
            break took;
        }
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("{name}: {} of {MESSAGES} messages came", took.len()).into());
        }
        tokio::time::sleep(PACE).await;
    };
    inbox.stop();
    inbox.join().await?;
    took.drain(..WARM_UP);
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
    println!("publish to handler, {name}: p50 {:.2} ms, p99 {:.2} ms", at(50), at(99));
    Ok(())
}

/// What 20 handlers cost that have nothing to do.
async fn idle(name: &str, url: &str, broker: impl Broker) -> Result<(), Error> {
    let pool = PgPoolOptions::new().max_connections(25).connect(url).await?;
    let inbox = Inbox::builder()
        .store(pool.clone())
        .broker(broker)
        .groups(GROUPS)
        .spawn()
        .await?;
    while !inbox.health().ready {
        tokio::time::sleep(PACE).await;
    }
    // Neither what starting costs counts, nor what the messages cost that are there already.
    let mut acked = None;
    while acked != Some(inbox.report().acked) {
        acked = Some(inbox.report().acked);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let before = cpu()?;
    tokio::time::sleep(IDLE).await;
    let percent = (cpu()? - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    println!("idle with 20 handlers, {name}: {percent:.1} % of a core, {threads} threads");
    inbox.stop();
    inbox.join().await?;
    pool.close().await;
    Ok(())
}

/// The processor time of this process so far.
pub(crate) fn cpu() -> Result<Duration, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the name, which may have spaces: the times are the 12th and 13th field, in hundredths of a second.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let ticks = field(11).zip(field(12)).ok_or("/proc/self/stat has no times")?;
    Ok(Duration::from_millis((ticks.0 + ticks.1) * 10))
}

/// Everything that is printed of latencies and idle costs: of the embedded broker, and of those whose servers are there.
pub(crate) async fn run(url: &str) -> Result<(), Error> {
    let pool = PgPoolOptions::new().max_connections(4).connect(url).await?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    let one = Embedded::file(file("one.db"));
    measured("embedded, one process", &pool, one.clone(), publish(&one)).await?;
    let two = file("two.db");
    let other = async {
        let mut publisher = Command::new(std::env::current_exe()?);
        publisher.env(PUBLISHER, &two);
        let ended = tokio::task::spawn_blocking(move || publisher.status()).await??;
        ended
            .success()
            .then_some(())
            .ok_or_else(|| "the publisher failed".into())
    };
    measured("embedded, two processes", &pool, Embedded::file(&two), other).await?;
    idle("embedded", url, Embedded::file(file("idle.db"))).await?;
    #[cfg(feature = "nats")]
    if let Some(nats) = crate::nats::empty(SUBJECT).await? {
        measured("nats", &pool, nats.clone(), publish(&nats)).await?;
        idle("nats", url, nats).await?;
    }
    #[cfg(feature = "kafka")]
    if let Some(kafka) = crate::kafka::empty(SUBJECT).await {
        measured("kafka", &pool, kafka.clone(), publish(&kafka)).await?;
        idle("kafka", url, kafka).await?;
    }
    pool.close().await;
    Ok(())
}
