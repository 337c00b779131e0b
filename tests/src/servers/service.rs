//! What every server of the harness has: a folder of its own with its data and its log, and a process that comes and goes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;

use super::{Server, child::kill_all_in};

/// A server's folder and its process, if it runs. Dropped, the process is killed and the folder removed.
#[derive(Debug)]
pub(super) struct Service {
    folder: PathBuf,
    server: Mutex<Option<Server>>,
}

impl Service {
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            server: Mutex::new(None),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a process in the folder and waits until it is `ready`, which is asked with what this process has logged.
    pub(super) fn start(&self, mut command: Command, ready: impl Fn(&str) -> bool) -> Result<(), String> {
        command.current_dir(&self.folder);
        let before = self.log().len();
        let mut server = Server::start(command, self.log_file()).map_err(|error| error.to_string())?;
        server.wait_until(|server| server.log().get(before..).is_some_and(&ready))?;
        *self.server() = Some(server);
        Ok(())
    }

    pub(super) fn stop(&self, signal: Signal) {
        if let Some(mut server) = self.server().take() {
            server.stop(signal);
        }
    }

    pub(super) fn kill(&self) {
        if let Some(mut server) = self.server().take() {
            server.kill();
            // Those that it was just starting.
            kill_all_in(&self.folder);
        }
    }

    /// Sends a signal to the process and those that it has started.
    pub(super) fn signal_all(&self, signal: Signal) {
        if let Some(server) = &*self.server() {
            server.signal_all(signal);
        }
    }

    /// All that its processes have logged.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
