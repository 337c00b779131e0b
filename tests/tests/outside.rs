//! A crate outside of the workspace, as a user's is: it builds with nothing but the features it asks for, passes clippy's
//! strictest lints, and handles a message.

use std::{fs, path::Path, process::Command};

const MANIFEST: &str = r#"[package]
name = "outside"
version = "0.0.0"
edition = "2024"

[dependencies]
inbox-runtime = { path = "RUNTIME", features = ["embedded", "sqlite"] }
serde = { version = "1", features = ["derive"] }
tokio = { version = "1", features = ["rt-multi-thread", "macros"] }

[workspace]
"#;

const MAIN: &str = r##"//! An empty crate with one handler.

use inbox_runtime::{
    Embedded, Inbox, Json, Message, inbox_handler,
    sqlx::{self, SqliteConnection, SqlitePool},
};

#[derive(serde::Deserialize)]
struct OrderCreated {
    order_id: String,
    amount_cents: i64,
}

#[inbox_handler(group = "billing", subject = "order.created")]
async fn create_invoice(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = SqlitePool::connect("sqlite://app.db?mode=rwc").await?;
    sqlx::query("CREATE TABLE invoices (order_id TEXT, amount_cents INTEGER)").execute(&pool).await?;
    let broker = Embedded::file("broker.db");
    for _ in 0..2 {
        broker.publish(Message::new("order.created", r#"{"order_id": "o1", "amount_cents": 100}"#).id("evt-1")).await?;
    }
    let mut inbox = Inbox::builder().store(pool.clone()).broker(broker).build().await?;
    println!("{}", inbox.run_until_idle().await?);
    let invoices: i64 = sqlx::query_scalar("SELECT count(*) FROM invoices").fetch_one(&pool).await?;
    println!("invoices={invoices}");
    Ok(())
}
"##;

/// Cargo in the crate. What it builds stays for the next time, since that takes a while.
fn cargo(folder: &Path, arguments: &[&str]) -> Command {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("the target folder");
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(folder)
        .args(arguments)
        .env("CARGO_TARGET_DIR", target.join("outside"))
        .env_remove("RUSTFLAGS");
    command
}

#[test]
fn a_crate_outside_of_the_workspace_builds_runs_and_is_clean_under_clippy() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = workspace.join("inbox-runtime").display().to_string();
    fs::create_dir(folder.path().join("src")).expect("the crate");
    fs::write(folder.path().join("Cargo.toml"), MANIFEST.replace("RUNTIME", &runtime)).expect("the crate");
    fs::write(folder.path().join("src/main.rs"), MAIN).expect("the crate");
    // The versions of the workspace, which are on this machine: nothing has to be fetched.
    fs::copy(workspace.join("Cargo.lock"), folder.path().join("Cargo.lock")).expect("the lock file");

    let output = cargo(folder.path(), &["run", "--quiet", "--offline"])
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("processed=1 skipped=0 duplicate=1 "), "{said}");
    assert!(said.contains("invoices=1"), "{said}");

    let clippy = [
        "clippy",
        "--quiet",
        "--offline",
        "--",
        "-D",
        "warnings",
        "-W",
        "clippy::pedantic",
    ];
    let output = cargo(folder.path(), &clippy).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
