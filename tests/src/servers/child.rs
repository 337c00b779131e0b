//! A server as a child process: started, stopped, killed, paused; it never outlives the process that started it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{NOBODY, is_root};

/// A command whose process the kernel kills when its parent dies. With `unprivileged` it isn't root.
#[must_use]
pub fn command(program: &Path, unprivileged: bool) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if unprivileged && is_root() {
        command.args([
            &format!("--reuid={NOBODY}"),
            &format!("--regid={NOBODY}"),
            "--clear-groups",
        ]);
    }
    command.arg("--").arg(program);
    command
}

/// Starts a process from a thread that never ends: the kernel takes the end of the thread that started a process for the
/// end of its parent, and each test has a thread of its own.
fn spawn(command: Command) -> io::Result<Child> {
    type Request = (Command, mpsc::Sender<io::Result<Child>>);
    static KEEPER: OnceLock<mpsc::Sender<Request>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in requests {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (sender, answer) = mpsc::channel();
    keeper
        .send((command, sender))
        .map_err(|_| io::Error::other("the keeper of the servers is gone"))?;
    answer
        .recv()
        .map_err(|_| io::Error::other("the keeper of the servers is gone"))?
}

/// How long a start or a stop may take on a machine that is busy with others.
const LIMIT: Duration = Duration::from_mins(3);

/// A running server. Dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts it, with everything that it says appended to `log`.
    ///
    /// # Errors
    ///
    /// When it can't be started.
    pub fn start(mut command: Command, log: PathBuf) -> io::Result<Self> {
        let out = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = spawn(command).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                error.kind(),
                "`setpriv` is missing; install it: apt-get install -y util-linux",
            ),
            _ => error,
        })?;
        Ok(Self { child, log })
    }

    /// What it has said.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `ready`; an error has what it said if it ended before, or took too long.
    ///
    /// # Errors
    ///
    /// When it isn't ready within three minutes.
    pub fn wait_until(&mut self, ready: impl Fn(&Self) -> bool) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let over = self.is_over() || start.elapsed() > LIMIT;
            if ready(self) {
                return Ok(());
            }
            if over {
                return Err(format!("a server did not start: {}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Whether it has ended.
    ///
    /// # Panics
    ///
    /// When the operating system doesn't tell.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Sends a signal to it and to the processes that it has started.
    pub fn signal_all(&self, signal: Signal) {
        let children = children_of(self.child.id());
        self.signal(signal);
        for child in children {
            send(child, signal);
        }
    }

    /// Tells it to stop with that signal; kills it if it doesn't within three minutes.
    pub fn stop(&mut self, signal: Signal) {
        self.signal(signal);
        let start = Instant::now();
        while !self.is_over() {
            if start.elapsed() > LIMIT {
                self.kill();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it and the processes that it has started, the hard way.
    pub fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended in the meantime.
        let _ = kill_process(pid, signal);
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes whose parent that one is.
fn children_of(parent: u32) -> Vec<u32> {
    processes().filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// Kills the processes that work in a folder.
pub(super) fn kill_all_in(folder: &Path) {
    for pid in processes() {
        if fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place.starts_with(folder)) {
            send(pid, Signal::KILL);
        }
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state parent …; the name may have spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// A new folder for a server's data, owned by whoever the server runs as. Folders that processes left behind which are
/// gone are removed; `abandoned` is asked to clean up what a folder knows of.
pub(super) fn data_folder(name: &str, abandoned: impl Fn(&Path)) -> io::Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let all = std::env::temp_dir().join("inbox-tests-servers");
    fs::create_dir_all(&all)?;
    for entry in fs::read_dir(&all)?.flatten() {
        let owner = entry
            .file_name()
            .to_str()
            .and_then(|name| name.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            abandoned(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = all.join(format!("{}-{name}-{number}", std::process::id()));
    fs::create_dir_all(&folder)?;
    if is_root() {
        std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(folder)
}
