//! Starts servers, runs a command with the variables that name them, and stops them.
//!
//! ```sh
//! cargo run -p inbox-tests --bin servers -- postgres -- cargo test -p inbox-tests --features postgres
//! ```

use std::process::{Command, ExitCode};

use inbox_tests::servers::postgres::Postgres;

const USAGE: &str = "usage: servers [postgres] [nats] [kafka] -- COMMAND…";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode, String> {
    let mut words = arguments.into_iter();
    let servers: Vec<String> = words.by_ref().take_while(|word| word != "--").collect();
    let program = words.next().ok_or(USAGE)?;
    let mut command = Command::new(program);
    command.args(words);

    let mut running = Vec::new();
    for server in servers {
        match server.as_str() {
            "postgres" => {
                let postgres = Postgres::start()?;
                let url = postgres.url("postgres");
                eprintln!("DATABASE_URL={url}");
                command.env("DATABASE_URL", url);
                running.push(postgres);
            }
            "nats" | "kafka" => return Err(format!("the harness can't start {server} yet")),
            _ => return Err(format!("there is no server `{server}`; {USAGE}")),
        }
    }
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    // Killed by a signal it has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
