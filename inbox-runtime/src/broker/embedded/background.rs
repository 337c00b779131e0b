//! The background tasks of a process: notices writes of other processes, deletes settled messages, warns of idle consumers.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    cleanup,
    idle_consumers::{self, IdleConsumer},
    limits::{IDLE_AFTER, POLL_INTERVAL, SCAN_MESSAGES, WATCH_INTERVAL},
    shared::EmbeddedShared,
    storage::Storage,
};
use crate::{broker::BrokerError, error_chain::text};

/// Starts the tasks unless they run: they end with the tokio runtime on which they were started.
pub(super) fn ensure_running(shared: &Arc<EmbeddedShared>) {
    let mut tasks = shared.background.tasks.lock();
    if !tasks.is_empty() && !tasks.iter().any(JoinHandle::is_finished) {
        return;
    }
    for task in tasks.drain(..) {
        task.abort();
    }
    tasks.push(tokio::spawn(clean_up(Arc::downgrade(shared))));
    if matches!(shared.storage, Storage::File { .. }) {
        tasks.push(tokio::spawn(watch(Arc::downgrade(shared))));
        tasks.push(tokio::spawn(check_consumers(Arc::downgrade(shared))));
    }
}

/// The shortest and the longest pause between two cleanups.
const CLEANUP_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The pause between two steps of a cleanup, so that others can write.
const STEP_PAUSE: Duration = Duration::from_millis(5);

/// Deletes settled messages after the retention time.
async fn clean_up(shared: Weak<EmbeddedShared>) {
    let mut failed = false;
    while let Some(shared) = shared.upgrade() {
        let keep = shared.retention.get();
        let more = match keep {
            Some(keep) => cleanup_step(&shared, keep).await,
            None => Ok(false),
        };
        let changed = Arc::clone(&shared.background.retention_changed);
        drop(shared);
        let pause = match &more {
            Ok(true) => STEP_PAUSE,
            Ok(false) => cleanup_pause(keep),
            Err(error) => {
                if !failed {
                    tracing::warn!(error = %text(error), "settled messages can't be deleted now; retrying");
                }
                CLEANUP_PAUSE.1
            }
        };
        failed = more.is_err();
        // Notified or not, the next step decides.
        let _ = timeout(pause, changed.notified()).await;
    }
}

/// The pause after a cleanup that found nothing.
fn cleanup_pause(keep: Option<i64>) -> Duration {
    let part = keep.map_or(CLEANUP_PAUSE.1, |keep| Duration::from_millis(keep.unsigned_abs() / 8));
    part.clamp(CLEANUP_PAUSE.0, CLEANUP_PAUSE.1)
}

/// Returns whether there is more to do.
async fn cleanup_step(shared: &EmbeddedShared, keep: i64) -> Result<bool, BrokerError> {
    let more = cleanup::delete_settled(shared, keep).await?;
    Ok(cleanup::shrink(shared).await? || more)
}

/// Wakes waiting pulls after writes of other processes.
async fn watch(shared: Weak<EmbeddedShared>) {
    let mut watcher = FileWatcher::default();
    loop {
        sleep(WATCH_INTERVAL).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.wakeups.consumer_ids().is_empty() || !watcher.is_due(&shared.storage) {
            continue;
        }
        if watcher.check(&shared).await.is_err() {
            // The pulls fetch themselves and report the error.
            shared.wakeups.wake_all();
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// A file's time is as coarse as the system's tick: one as recent as this may be of several writes.
const RECENT: Duration = Duration::from_millis(50);
/// How often the file is checked whatever its time is, which not every file system keeps.
const CHECK_AT_LEAST: Duration = Duration::from_millis(250);

/// The state of the file at the last check.
#[derive(Debug, Default)]
struct FileWatcher {
    /// When the write-ahead log was last written, and when that was looked at.
    written: Option<(SystemTime, Instant)>,
    /// SQLite's `data_version`, which counts the commits of other connections.
    version: Option<i64>,
    /// The last message.
    last_seq: i64,
    /// When to wake all pulls, after a write of something other than messages.
    wake_all_at: Option<Instant>,
}

impl FileWatcher {
    /// Whether there may have been writes since the last check. Without a statement, for which a thread is woken.
    fn is_due(&mut self, storage: &Storage) -> bool {
        let written = storage.log_written();
        let before = self.written;
        let is_same = written.zip(before).is_some_and(|(written, (time, checked))| {
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            written == time && age > RECENT && checked.elapsed() < CHECK_AT_LEAST
        });
        if is_same && self.wake_all_at.is_none() {
            return false;
        }
        self.written = written.map(|written| (written, Instant::now()));
        true
    }

    async fn check(&mut self, shared: &EmbeddedShared) -> Result<(), BrokerError> {
        let before = self.version;
        let (version, subjects, end) = self.read(shared).await?;
        for subject in &subjects {
            shared.wakeups.wake_subject(subject);
        }
        if end - self.last_seq > SCAN_MESSAGES {
            shared.wakeups.wake_all();
        }
        if before.is_some_and(|before| before != version) && self.wake_all_at.is_none() {
            self.wake_all_at = Some(Instant::now() + POLL_INTERVAL);
        }
        if self.wake_all_at.is_some_and(|at| at <= Instant::now()) {
            self.wake_all_at = None;
            shared.wakeups.wake_all();
        }
        self.version = Some(version);
        self.last_seq = self.last_seq.max(end);
        Ok(())
    }

    /// The file's version, the subjects of new messages (none if there are too many), and the last message.
    async fn read(&self, shared: &EmbeddedShared) -> Result<(i64, Vec<String>, i64), BrokerError> {
        let mut connection = shared.db().await?.reader().await?;
        let (before, last_seq) = (self.version, self.last_seq);
        let read = async {
            let version: i64 = sqlx::query_scalar("PRAGMA data_version")
                .fetch_one(&mut *connection)
                .await?;
            if before == Some(version) {
                return Ok((version, Vec::new(), last_seq));
            }
            let end: i64 = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM messages")
                .fetch_one(&mut *connection)
                .await?;
            let subjects: Vec<String> = if end - last_seq > SCAN_MESSAGES || end <= last_seq {
                Vec::new()
            } else {
                sqlx::query_scalar("SELECT DISTINCT subject FROM messages WHERE seq > ?")
                    .bind(last_seq)
                    .fetch_all(&mut *connection)
                    .await?
            };
            Ok((version, subjects, end))
        };
        let result = read.await;
        connection.finish("look for messages in", result)
    }
}

/// The delay before the first check of consumers: this program opens its own first.
const FIRST_CHECK: Duration = Duration::from_secs(5);
/// The interval at which the consumers of this process are recorded as open.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Records the consumers of this process as open. Soon after the start and once a day, warns of those that are idle and
/// keep messages.
async fn check_consumers(shared: Weak<EmbeddedShared>) {
    let mut warned_at: Option<Instant> = None;
    sleep(FIRST_CHECK).await;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let is_due = warned_at.is_none_or(|at| at.elapsed() >= IDLE_AFTER);
        match idle_consumers::check(&shared, is_due).await {
            Ok(idle) => idle.iter().for_each(IdleConsumer::warn),
            Err(error) => tracing::debug!(error = %text(&error), "the durable consumers can't be checked now"),
        }
        if is_due {
            warned_at = Some(Instant::now());
        }
        drop(shared);
        sleep(CHECK_INTERVAL).await;
    }
}
