//! The order of a message's statements, read from the log of the whole process: a program of its own, since other tests would write
//! to that log too.

use std::{
    io,
    sync::{Arc, Mutex},
};

use inbox_runtime::Outcome;
use inbox_tests::{EmbeddedFile, SqliteFile, World, next};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Everything that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn a7_the_claim_is_the_first_statement_and_nothing_is_read_before() {
    let log = Log::default();
    // Of the whole process, since sqlx runs the statements on threads of its own.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("inbox_runtime=info,sqlx::query=debug"))
        .with_ansi(false)
        .with_writer(log.clone())
        .init();
    let world = World::<EmbeddedFile, SqliteFile>::new().await;
    for _ in 0..2 {
        world.publish("the-a7-message").await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    let log = String::from_utf8(log.0.lock().expect("a lock").clone()).expect("UTF-8");
    // What touches a table, in the order in which it ran.
    let statements: Vec<String> = log
        .lines()
        .filter(|line| line.contains("the-a7-message") && line.contains("sqlx::query"))
        .filter_map(|line| line.split_once("summary=\"")?.1.split_once('"'))
        .map(|(summary, _)| {
            summary
                .split(['(', ',', '…'])
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .filter(|summary| {
            summary.contains(' ')
                && !summary.starts_with("PRAGMA")
                && summary != "SELECT 1"
                && !summary.contains("sqlite_schema")
        })
        .collect();
    assert_eq!(
        statements,
        [
            "INSERT INTO inbox_events",
            "INSERT INTO effects",
            "INSERT INTO inbox_events",
            // Whose row it is that is there.
            "SELECT fingerprint FROM inbox_events",
        ],
        "{log}"
    );
}
