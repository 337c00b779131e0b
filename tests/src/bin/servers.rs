//! Starts servers, runs a command with the variables that name them, and stops them.
//!
//! ```sh
//! cargo run -p inbox-tests --bin servers -- postgres -- cargo test -p inbox-tests --features postgres
//! ```

use std::{
    any::Any,
    process::{Command, ExitCode},
};

use inbox_tests::servers::{kafka::Kafka, nats::Nats, postgres::Postgres};

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
    let mut set = |name: &str, value: &str| {
        eprintln!("{name}={value}");
        command.env(name, value);
    };

    let mut running: Vec<Box<dyn Any>> = Vec::new();
    let mut brokers = Vec::new();
    for server in servers {
        match server.as_str() {
            "postgres" => {
                let postgres = Postgres::start()?;
                set("DATABASE_URL", &postgres.url("postgres"));
                running.push(Box::new(postgres));
            }
            "nats" => {
                let nats = Nats::start()?;
                set("NATS_URL", &nats.url());
                brokers.push(nats.url());
                running.push(Box::new(nats));
            }
            "kafka" => {
                let kafka = Kafka::start()?;
                set("KAFKA_BROKERS", &kafka.brokers());
                brokers.push(kafka.url());
                running.push(Box::new(kafka));
            }
            _ => return Err(format!("there is no server `{server}`; {USAGE}")),
        }
    }
    match &brokers[..] {
        [] => {}
        [broker] => set("INBOX_BROKER_URL", broker),
        _ => {
            eprintln!("INBOX_BROKER_URL is not set: there is more than one broker");
            command.env_remove("INBOX_BROKER_URL");
        }
    }
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    // Killed by a signal it has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
