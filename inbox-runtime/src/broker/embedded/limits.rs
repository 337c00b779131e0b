//! Fixed sizes and times of the embedded broker.

use std::time::Duration;

/// How often the file is checked for writes of other processes while a pull waits: by the time of its log.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_millis(10);
/// How often all waiting pulls are woken while other processes write something other than messages.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// The longest time between two fetches of a waiting pull, which is woken by whatever is written.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The interval between two readings of the lag.
pub(super) const LAG_INTERVAL: Duration = Duration::from_secs(5);

/// The most settled messages that one cleanup step deletes: it holds the write lock for a few milliseconds.
pub(super) const STEP_MESSAGES: i64 = 256;
/// After this many bytes a cleanup step deletes no further message.
pub(super) const STEP_BYTES: i64 = 1024 * 1024;
/// The number of free pages that stay in the file for the next writes: 1 MiB.
pub(super) const SPARE_PAGES: i64 = 256;
/// Files of version 1 up to this size, in bytes, are vacuumed at the start, so that they can shrink afterwards.
pub(super) const MAX_VACUUM: i64 = 128 * 1024 * 1024;
/// After this time without being open, a consumer that keeps messages is warned of.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a statement waits for another process' lock.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages one transaction scans: a long search for a rare subject must let others write in between.
pub(super) const SCAN_MESSAGES: i64 = 4096;
/// The longest ack-wait in milliseconds: the current time plus this fits a column.
pub(super) const MAX_ACK_WAIT: i64 = i64::MAX / 4;
