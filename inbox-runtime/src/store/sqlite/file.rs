//! What all pools of this process on one SQLite file share: the queue before its write lock, how long somebody else has held
//! that lock, and whether the file is still the one that was opened.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch},
    time::Instant,
};

use crate::store::StoreError;

/// The right to write, until it is dropped.
pub(super) type WriteTurn = OwnedMutexGuard<()>;

/// One file, for all pools of this process that write to it.
#[derive(Debug)]
pub(super) struct SharedFile {
    path: PathBuf,
    /// SQLite has one writer; without a fair queue before it some workers would starve.
    queue: Arc<AsyncMutex<()>>,
    /// Since when a connection that isn't ours has held the write lock.
    locked_since: watch::Sender<Option<Instant>>,
    /// Which file it is, once it was seen.
    identity: OnceLock<FileIdentity>,
}

/// The device and the inode, which a file keeps when it is renamed.
type FileIdentity = (u64, u64);

impl SharedFile {
    /// The one of that path.
    pub(super) fn of(path: PathBuf) -> Arc<Self> {
        static FILES: LazyLock<Mutex<HashMap<PathBuf, Weak<SharedFile>>>> = LazyLock::new(Mutex::default);
        let mut files = FILES.lock();
        files.retain(|_, file| file.strong_count() > 0);
        if let Some(file) = files.get(&path).and_then(Weak::upgrade) {
            return file;
        }
        let file = Arc::new(Self {
            path: path.clone(),
            queue: Arc::default(),
            locked_since: watch::Sender::new(None),
            identity: OnceLock::new(),
        });
        let _ = file.check();
        files.insert(path, Arc::downgrade(&file));
        file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the right to write. Fails as soon as somebody else holds the lock, since the wait may be long then.
    pub(super) async fn turn(&self) -> Result<WriteTurn, StoreError> {
        let mut locked_since = self.locked_since.subscribe();
        tokio::select! {
            biased;
            turn = self.queue.clone().lock_owned() => Ok(turn),
            // The sender lives as long as `self`.
            since = locked_since.wait_for(Option::is_some) => {
                let since = since.ok().and_then(|since| *since);
                Err(self.locked_error(since.unwrap_or_else(Instant::now)))
            }
        }
    }

    /// We got the write lock.
    pub(super) fn unlocked(&self) {
        self.locked_since.send_if_modified(|locked| locked.take().is_some());
    }

    /// Whether somebody else held the write lock when it was last requested.
    pub(super) fn is_locked(&self) -> bool {
        self.locked_since.borrow().is_some()
    }

    /// Somebody else has held the write lock since `tried` at least.
    pub(super) fn locked(&self, tried: Instant) -> StoreError {
        let mut since = tried;
        self.locked_since
            .send_modify(|locked| since = *locked.get_or_insert(tried));
        self.locked_error(since)
    }

    fn locked_error(&self, since: Instant) -> StoreError {
        let whole = Duration::from_secs(since.elapsed().as_secs().max(1));
        StoreError::Unavailable(
            format!(
                "another process or connection has held the write lock of {} for {}; messages wait for it in their order. \
                 SQLite has one writer at a time: end that transaction, and keep others short",
                self.path.display(),
                humantime::format_duration(whole),
            )
            .into(),
        )
    }

    /// Whether the path still names the file that was opened: what is written to a deleted file is lost.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let found = match fs::metadata(&self.path) {
            Ok(found) => Some(identity(&found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // That its metadata can't be read proves nothing; SQLite's own errors will tell.
            Err(_) => return Ok(()),
        };
        match (self.identity.get(), found) {
            (None, Some(found)) => {
                let _ = self.identity.set(found);
                Ok(())
            }
            (None, None) => Ok(()),
            (Some(opened), Some(found)) if *opened == found => Ok(()),
            (Some(_), Some(_)) => Err(lost(&self.path, "was replaced")),
            (Some(_), None) => Err(lost(&self.path, "was deleted or moved")),
        }
    }

    /// Whether the write-ahead log exists, as it must while a connection has the file open; and, where something has just been
    /// `written`, that it isn't empty, as one that another connection has created since would be.
    pub(super) fn check_wal(&self, written: bool) -> Result<(), StoreError> {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let log = PathBuf::from(log);
        match fs::metadata(&log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(lost(&log, "was deleted or moved")),
            Ok(found) if written && found.len() == 0 => Err(lost(&log, "was replaced")),
            _ => Ok(()),
        }
    }
}

fn lost(file: &Path, what: &str) -> StoreError {
    StoreError::Unavailable(
        format!(
            "the SQLite file {} {what} while this program had it open, so that whatever is written would be lost; put the \
             file back or restart the program",
            file.display()
        )
        .into(),
    )
}

#[cfg(unix)]
fn identity(found: &fs::Metadata) -> FileIdentity {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

/// Elsewhere a file that is open can't be deleted or replaced.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> FileIdentity {
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_or_replaced_file_is_detected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("app.db");
        let file = SharedFile::of(path.clone());
        file.check().expect("not there yet");
        fs::write(&path, "").expect("written");
        file.check().expect("seen");
        file.check().expect("the same");
        let aside = folder.path().join("aside.db");
        fs::rename(&path, &aside).expect("renamed");
        assert!(file.check().unwrap_err().to_string().len() > 10);
        fs::write(&path, "").expect("written");
        file.check().expect_err("another one");
        fs::rename(&aside, &path).expect("put back");
        file.check().expect("the same again");
    }
}
