//! Other processes: the program `worker` on a test's broker and database, and what it says.

use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
pub use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

use crate::{
    broker::TestBroker,
    database::TestDatabase,
    world::{World, pause},
};

/// How long a process may take for whatever a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the long forms of tests are wanted.
#[must_use]
pub fn long() -> bool {
    std::env::var_os("INBOX_TEST_LONG").is_some_and(|value| value == "1")
}

/// How a worker is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When no message is ready.
    Idle,
    /// On SIGTERM.
    Run,
    /// As `inbox_runtime::run()` does, which it consists of. It has handlers of its own.
    Main,
}

/// A worker to start.
#[derive(Debug)]
pub struct WorkerCommand(Command);

impl WorkerCommand {
    /// A worker on these URLs, for that group. The program is `env!("CARGO_BIN_EXE_worker")`, which only a test knows.
    #[must_use]
    pub fn new(program: &str, mode: Mode, broker: &str, database: &str, group: &str) -> Self {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("INBOX_") {
                command.env_remove(name);
            }
        }
        let mode = match mode {
            Mode::Idle => "idle",
            Mode::Run => "run",
            Mode::Main => "main",
        };
        command
            .env("INBOX_BROKER_URL", broker)
            .env("DATABASE_URL", database)
            .env("INBOX_GROUPS", group)
            .env("INBOX_TEST_MODE", mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self(command)
    }

    /// A worker on a test's broker and database.
    ///
    /// # Panics
    ///
    /// When no other process can reach the broker.
    #[must_use]
    pub fn on<B: TestBroker, D: TestDatabase>(program: &str, mode: Mode, world: &World<B, D>, group: &str) -> Self {
        let broker = world.broker.url().expect("a broker that another process can reach");
        let command =
            Self::new(program, mode, &broker, &world.database.url(), group).env("INBOX_TEST_HANDLERS", D::HANDLERS);
        let variables = world.broker.variables();
        variables
            .iter()
            .fold(command, |command, (name, value)| command.env(name, value))
    }

    /// It takes the place of the worker of that name that was there before, however long the broker would have waited for that
    /// one.
    #[must_use]
    pub fn in_place<B: TestBroker, D: TestDatabase>(self, world: &World<B, D>, name: &str) -> Self {
        let variables = world.broker.member(name);
        variables
            .iter()
            .fold(self, |command, (name, value)| command.env(name, value))
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// What its handlers do, see [`Script`](crate::Script).
    #[must_use]
    pub fn script(self, script: &str) -> Self {
        self.env("INBOX_TEST_SCRIPT", script)
    }

    /// It kills itself at that point.
    #[must_use]
    pub fn kill_at(self, point: &str) -> Self {
        self.env("INBOX_TEST_KILL", point)
    }

    /// How long a broker waits for it.
    #[must_use]
    pub fn ack_wait(self, wait: Duration) -> Self {
        self.env("INBOX_ACK_WAIT", &format!("{}ms", wait.as_millis()))
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    #[must_use]
    pub fn start(mut self) -> Worker {
        let mut child = self.0.spawn().expect("a worker");
        Worker {
            said: Pipe::read(child.stdout.take().expect("piped")),
            log: Pipe::read(child.stderr.take().expect("piped")),
            child,
        }
    }
}

/// The lines of a pipe so far.
#[derive(Debug)]
struct Pipe {
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Pipe {
    fn read(from: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = lines.clone();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(from).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                into.lock().push(line);
            }
        });
        Self { lines, reader }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Every line, once nobody can write any more.
    async fn end(mut self) -> Vec<String> {
        let _ = (&mut self.reader).await;
        self.lines()
    }
}

/// A running worker. Dropped, it is killed.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    said: Pipe,
    log: Pipe,
}

impl Worker {
    /// Waits until it says a line that begins so.
    ///
    /// # Panics
    ///
    /// When it ends without, or takes too long.
    pub async fn says(&mut self, beginning: &str) {
        self.wait(beginning, |worker| {
            worker.said.lines().iter().any(|line| line.starts_with(beginning))
        })
        .await;
    }

    /// Waits until its log has that text.
    ///
    /// # Panics
    ///
    /// When it ends without, or takes too long.
    pub async fn logs(&mut self, text: &str) {
        self.wait(text, |worker| worker.log.lines().iter().any(|line| line.contains(text)))
            .await;
    }

    async fn wait(&mut self, what: &str, seen: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        loop {
            let waited = start.elapsed();
            let over = self.is_over() || waited > PATIENCE;
            if seen(self) {
                return;
            }
            assert!(!over, "a worker never said `{what}`: {self:#?}");
            tokio::time::sleep(pause(waited)).await;
        }
    }

    /// Lets a worker with `INBOX_TEST_BARRIER` begin.
    pub fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended in the meantime.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// How much memory it has, in bytes; 0 when it has ended.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let status = self.child.id().map(|id| format!("/proc/{id}/status"));
        let status = status.and_then(|path| std::fs::read_to_string(path).ok());
        let status = status.unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = resident.and_then(|text| text.split_whitespace().next());
        number.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default() * 1024
    }

    /// The names of its threads; none when it has ended.
    #[must_use]
    pub fn threads(&self) -> Vec<String> {
        let tasks = self.child.id().map(|id| format!("/proc/{id}/task"));
        let tasks = tasks.and_then(|path| std::fs::read_dir(path).ok());
        let name =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
        tasks.into_iter().flatten().filter_map(name).collect()
    }

    /// How often handlers began so far.
    #[must_use]
    pub fn runs_so_far(&self) -> usize {
        runs(&self.said.lines())
    }

    /// Whether it has ended.
    ///
    /// # Panics
    ///
    /// When the operating system doesn't tell.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// When it takes too long.
    pub async fn end(mut self) -> Ended {
        let Ok(status) = tokio::time::timeout(PATIENCE, self.child.wait()).await else {
            panic!("a worker didn't end: {self:#?}");
        };
        Ended {
            status: status.expect("its status"),
            said: self.said.end().await,
            log: self.log.end().await,
        }
    }

    /// Kills it and waits for its end.
    pub async fn kill(self) -> Ended {
        self.signal(Signal::KILL);
        self.end().await
    }

    /// Tells it to stop, waits for its end, and sees to it that it ended well.
    ///
    /// # Panics
    ///
    /// When it didn't.
    pub async fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        let ended = self.end().await;
        assert!(ended.status.success(), "{ended:#?}");
        ended
    }
}

/// A worker that has ended.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// What it said on its standard output.
    pub said: Vec<String>,
    /// What it said on its standard error.
    pub log: Vec<String>,
}

impl Ended {
    /// Whether that signal ended it.
    #[must_use]
    pub fn killed_by(&self, signal: Signal) -> bool {
        self.status.signal() == Some(signal.as_raw())
    }

    /// How often a group's handler began on a message.
    #[must_use]
    pub fn runs(&self, group: &str, id: &str) -> usize {
        self.count(&format!("run {group} {id} "))
    }

    /// How often handlers began.
    #[must_use]
    pub fn all_runs(&self) -> usize {
        runs(&self.said)
    }

    fn count(&self, beginning: &str) -> usize {
        self.said.iter().filter(|line| line.starts_with(beginning)).count()
    }
}

fn runs(said: &[String]) -> usize {
    said.iter().filter(|line| line.starts_with("run ")).count()
}
