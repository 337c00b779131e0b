//! What a process does in the background for the broker's file: it looks for what other processes wrote, deletes what is
//! settled, and warns of durables that nobody reads.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    Shared, absent,
    config::{ABSENT, POLL, Place, SCAN, WATCH},
    sweep,
};
use crate::{broker::BrokerError, error_chain::text};

/// The tasks, each until the broker is dropped.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// The retention or the clock was set.
    set: Arc<Notify>,
}

impl Upkeep {
    /// Lets the retention look at once.
    pub(super) fn retain_now(&self) {
        self.set.notify_one();
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Starts the tasks if they don't run: they end with the runtime that they were started on.
pub(super) fn keep_up(shared: &Arc<Shared>) {
    let mut tasks = shared.upkeep.tasks.lock().unwrap_or_else(PoisonError::into_inner);
    if !tasks.is_empty() && !tasks.iter().any(JoinHandle::is_finished) {
        return;
    }
    for task in tasks.drain(..) {
        task.abort();
    }
    tasks.push(tokio::spawn(retain(Arc::downgrade(shared))));
    if matches!(shared.place, Place::File { .. }) {
        tasks.push(tokio::spawn(watch(Arc::downgrade(shared))));
        tasks.push(tokio::spawn(visit(Arc::downgrade(shared))));
    }
}

/// The shortest and the longest wait between two looks for settled messages.
const RETAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The wait between two steps, so that others get to write.
const STEP: Duration = Duration::from_millis(5);

/// Deletes settled messages when their time has come.
async fn retain(shared: Weak<Shared>) {
    let mut failed = false;
    while let Some(shared) = shared.upgrade() {
        let keep = shared.keep.get();
        let more = match keep {
            Some(keep) => step(&shared, keep).await,
            None => Ok(false),
        };
        let set = Arc::clone(&shared.upkeep.set);
        drop(shared);
        let pause = match &more {
            Ok(true) => STEP,
            Ok(false) => idle(keep),
            Err(error) => {
                if !failed {
                    tracing::warn!(error = %text(error), "settled messages can't be deleted now; trying again");
                }
                RETAIN.1
            }
        };
        failed = more.is_err();
        // It ends early or late, and the next look tells.
        let _ = timeout(pause, set.notified()).await;
    }
}

/// How long to wait when nothing was due.
fn idle(keep: Option<i64>) -> Duration {
    let part = keep.map_or(RETAIN.1, |keep| Duration::from_millis(keep.unsigned_abs() / 8));
    part.clamp(RETAIN.0, RETAIN.1)
}

/// One step of the retention. Returns whether there is more to do.
async fn step(shared: &Shared, keep: i64) -> Result<bool, BrokerError> {
    let more = sweep::delete_settled(shared, keep).await?;
    Ok(sweep::shrink(shared).await? || more)
}

/// Wakes the pulls that wait for what other processes write.
async fn watch(shared: Weak<Shared>) {
    let mut seen = Seen::default();
    loop {
        tokio::time::sleep(WATCH).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.wakes.ids().is_empty() {
            continue;
        }
        if seen.look(&shared).await.is_err() {
            // The pulls look themselves, and say what is wrong.
            shared.wakes.all();
            tokio::time::sleep(POLL).await;
        }
    }
}

/// What the watch has seen of the file.
#[derive(Debug, Default)]
struct Seen {
    /// SQLite's counter of what other connections have committed.
    version: Option<i64>,
    /// The last message.
    last: i64,
    /// When all pulls are to look, for something other than messages.
    all: Option<Instant>,
}

impl Seen {
    async fn look(&mut self, shared: &Shared) -> Result<(), BrokerError> {
        let mut reading = shared.db().await?.reading().await?;
        let last = self.last;
        let before = self.version;
        let read = async {
            let version: i64 = sqlx::query_scalar("PRAGMA data_version")
                .fetch_one(&mut *reading)
                .await?;
            if before == Some(version) {
                return Ok((version, Vec::new(), last));
            }
            let end: i64 = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM messages")
                .fetch_one(&mut *reading)
                .await?;
            let subjects: Vec<String> = if end - last > SCAN || end <= last {
                Vec::new()
            } else {
                sqlx::query_scalar("SELECT DISTINCT subject FROM messages WHERE seq > ?")
                    .bind(last)
                    .fetch_all(&mut *reading)
                    .await?
            };
            Ok((version, subjects, end))
        };
        let result = read.await;
        let (version, subjects, end) = reading.done("look for messages in", result)?;
        for subject in &subjects {
            shared.wakes.published(subject);
        }
        if end - last > SCAN {
            shared.wakes.all();
        }
        if before.is_some_and(|before| before != version) && self.all.is_none() {
            self.all = Some(Instant::now() + POLL);
        }
        if self.all.is_some_and(|at| at <= Instant::now()) {
            self.all = None;
            shared.wakes.all();
        }
        self.version = Some(version);
        self.last = self.last.max(end);
        Ok(())
    }
}

/// How long after the start it is looked for durables that nobody reads: this program opens its own first.
const FIRST_VISIT: Duration = Duration::from_secs(5);
/// How often it is noted that the durables of this process are read.
const VISIT: Duration = Duration::from_secs(600);

/// Notes that the durables of this process are read, and says soon after the start and once a day which others keep messages
/// that nobody reads.
async fn visit(shared: Weak<Shared>) {
    let mut warned: Option<Instant> = None;
    tokio::time::sleep(FIRST_VISIT).await;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let is_due = warned.is_none_or(|at| at.elapsed() >= ABSENT);
        match absent::look(&shared, is_due).await {
            Ok(absent) => absent.iter().for_each(absent::Absent::warn),
            Err(error) => tracing::debug!(error = %text(&error), "the durable consumers can't be looked at now"),
        }
        if is_due {
            warned = Some(Instant::now());
        }
        drop(shared);
        tokio::time::sleep(VISIT).await;
    }
}
