//! pgbench with the four statements of a message.

use std::{path::Path, process::Command, time::Duration};

use crate::Error;

/// Transactions a second of pgbench.
pub(crate) fn pgbench(url: &str, mode: &str, connections: u32, time: Duration, script: &Path) -> Result<f64, Error> {
    let output = Command::new(std::env::var("PGBENCH").unwrap_or_else(|_| find_pgbench()))
        .args([
            "-n",
            "-M",
            mode,
            "-c",
            &connections.to_string(),
            "-j",
            &connections.min(2).to_string(),
        ])
        .args(["-T", &time.as_secs().max(1).to_string(), "-f"])
        .arg(script)
        .arg(url)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
}

/// pgbench is on the path, or where Debian puts it.
fn find_pgbench() -> String {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    debian
        .map(|version| version.path().join("bin/pgbench"))
        .find(|path| path.exists())
        .map_or_else(|| "pgbench".to_owned(), |path| path.display().to_string())
}

pub(crate) const SCRIPT: &str = r"\set id random(1, 9000000000000000000)
BEGIN;
INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ('pgbench', 'evt-' || :id, 1) ON CONFLICT (consumer_group, message_id) DO NOTHING;
INSERT INTO invoices (order_id, amount_cents) VALUES (:id, 100);
COMMIT;
";
