//! A process that handles messages, for the tests that kill it, stop it or start several at once.
//!
//! It runs the shared handlers of the groups in `INBOX_GROUPS`, on `INBOX_BROKER_URL` and `DATABASE_URL`. The rest of its
//! environment, which [`inbox_tests::process`] sets:
//!
//! * `INBOX_TEST_MODE`: `idle` ends when no message is ready, `run` on SIGTERM; `main` is what a user's `main` is, with
//!   the handlers below.
//! * `INBOX_TEST_HANDLERS`: the database whose handlers are meant, since there are the same for every one.
//! * `INBOX_TEST_SCRIPT`: what handlers do, see [`Script`].
//! * `INBOX_TEST_KILL`: `<point>` or `<point>:<n>`; it kills itself when it gets there (for the `n`-th time).
//! * `INBOX_TEST_BARRIER`: set, it begins when its standard input ends.
//!
//! On its standard output: `waiting` at the barrier, `ready` once it has subscribed, `run <group> <id> <n>` when a handler begins, `report …` at the
//! end; in the mode `main`, `ended` when `run()` has returned.

use std::{io::Write, sync::LazyLock};

use anyhow::{Context, Result, bail};
use inbox_runtime::{Handled, HandlerError, Inbox, InboxBuilder, Json, Meta, Report, inbox_handler};
use inbox_tests::{Order, Probe, Script, handlers::handle};
use tokio::signal::unix::{SignalKind, signal};

/// `inbox_runtime::run()` takes no state.
static PROBE: LazyLock<Probe> = LazyLock::new(Probe::default);

macro_rules! handlers {
    ($module:ident, $conn:ty, $one:literal, $many:literal) => {
        mod $module {
            use super::*;

            #[inbox_handler(group = $one, subject = "order.created", backoff = "10ms..40ms")]
            async fn one_at_a_time(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
            ) -> Result<Handled, HandlerError> {
                handle(tx, order, meta, PROBE.clone()).await
            }

            #[inbox_handler(group = $many, subject = "order.created", backoff = "10ms..40ms", concurrency = 5)]
            async fn many_at_a_time(
                tx: &mut $conn,
                Json(order): Json<Order>,
                meta: Meta,
            ) -> Result<Handled, HandlerError> {
                handle(tx, order, meta, PROBE.clone()).await
            }
        }
    };
}

handlers!(
    sqlite,
    inbox_runtime::sqlx::SqliteConnection,
    "one-sqlite",
    "many-sqlite"
);
#[cfg(feature = "postgres")]
handlers!(
    postgres,
    inbox_runtime::sqlx::PgConnection,
    "one-postgres",
    "many-postgres"
);

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(variable("RUST_LOG").unwrap_or_else(|| "info,inbox_runtime::config=off".to_owned()))
        .init();
    // A test that aborts processes need not leave their memory behind.
    let no_core = rustix::process::Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(rustix::process::Resource::Core, no_core)?;
    if variable("INBOX_TEST_PANIC_HOOK").is_some() {
        // As programs do that are not to go on after a panic.
        std::panic::set_hook(Box::new(|_| std::process::abort()));
    }
    let script: Script = variable("INBOX_TEST_SCRIPT").unwrap_or_default().parse()?;
    PROBE.script(move |call| {
        say(&format!("run {} {} {}", call.group, call.id, call.run));
        script.step(call)
    });
    if let Some(point) = variable("INBOX_TEST_KILL") {
        kill_at(&point)?;
    }
    if variable("INBOX_TEST_BARRIER").is_some() {
        say("waiting");
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    match variable("INBOX_TEST_MODE").as_deref() {
        Some("idle") => finish(until_idle().await?),
        Some("run") => finish(until_stopped().await?),
        Some("main") => {
            let ended = inbox_runtime::run().await;
            say("ended");
            ended?;
        }
        mode => bail!("INBOX_TEST_MODE is {mode:?}; write idle, run or main"),
    }
    Ok(())
}

async fn until_idle() -> Result<Report> {
    let mut inbox = builder()?.build().await?;
    say("ready");
    let report = inbox.run_until_idle().await?;
    inbox.close().await;
    Ok(report)
}

async fn until_stopped() -> Result<Report> {
    let mut stop = signal(SignalKind::terminate())?;
    let inbox = builder()?
        .shutdown(async move {
            let _ = stop.recv().await;
        })
        .build()
        .await?;
    say("ready");
    Ok(inbox.run().await?)
}

fn builder() -> Result<InboxBuilder> {
    let database = variable("INBOX_TEST_HANDLERS").context("INBOX_TEST_HANDLERS is not set")?;
    let module = variable("INBOX_TEST_MODULE").unwrap_or_else(|| "inbox_tests::handlers".to_owned());
    Ok(Inbox::builder()
        .state(PROBE.clone())
        .select(move |meta| {
            meta.name
                .strip_prefix(&*module)
                .is_some_and(|rest| rest.starts_with("::"))
        })
        .select(move |meta| meta.name.split("::").any(|part| part == database)))
}

fn finish(report: Report) {
    say(&format!("report {report}"));
}

/// One line, written at once: what a process has said must not die with it.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("the standard output");
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(feature = "failpoints")]
fn kill_at(point: &str) -> Result<()> {
    use std::sync::atomic::{AtomicU32, Ordering};

    let (name, nth) = point.split_once(':').unwrap_or((point, "1"));
    let nth: u32 = nth.parse().context("INBOX_TEST_KILL")?;
    let reached = AtomicU32::new(0);
    let kill = move || {
        if reached.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    };
    fail::cfg_callback(format!("inbox::{name}"), kill).map_err(anyhow::Error::msg)
}

#[cfg(not(feature = "failpoints"))]
fn kill_at(point: &str) -> Result<()> {
    bail!("there is no point {point} in this build; build it with --features failpoints");
}
