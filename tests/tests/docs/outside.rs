//! A crate outside of the workspace, made of what the README says and nothing else: it builds with the features that it asks
//! for, its test passes, it handles a message, and it is clean under clippy's strictest lints.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use inbox_runtime::{
    Embedded, Message,
    sqlx::{self, SqlitePool},
};
use inbox_tests::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::readme;

/// Cargo in the crate. What it builds stays for the next time, since that takes a while.
fn cargo(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(folder)
        .args(arguments)
        .arg("--offline")
        .env("CARGO_TARGET_DIR", folder_of_builds())
        // It is not debugged, and builds faster without.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("RUSTFLAGS")
        .env_remove("DATABASE_URL")
        .env_remove("INBOX_BROKER_URL");
    command
}

fn succeeded(mut command: Command) -> Output {
    let output = command.output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Writes the crate, as a reader of the README would.
fn write(folder: &Path) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let runtime = workspace.join("inbox-runtime").display().to_string();
    let dependencies = readme::block_with("toml", "[dev-dependencies]").replace("…/inbox-runtime", &runtime);
    let package = "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";
    let handler = readme::block_with("rust,no_run", "async fn main()");
    let test = readme::block_with("rust", "mod tests");
    let program = format!("{handler}\n{test}");
    let lines = program.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines < 40, "{lines} lines:\n{program}");
    fs::create_dir(folder.join("src")).expect("the crate");
    fs::write(
        folder.join("Cargo.toml"),
        format!("{package}\n{dependencies}\n[workspace]\n"),
    )
    .expect("the crate");
    fs::write(folder.join("src/main.rs"), program).expect("the crate");
    // The versions of the workspace, which are on this machine: nothing has to be fetched.
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file");
}

#[tokio::test]
async fn a_crate_made_of_the_readme_alone_tests_and_handles_and_is_clean_under_clippy() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    write(folder);

    let output = succeeded(cargo(folder, &["test", "--quiet"]));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("test result: ok. 1 passed"), "{said}");

    let lints = ["--", "-D", "warnings", "-W", "clippy::pedantic"];
    let mut clippy = cargo(folder, &["clippy", "--quiet", "--all-targets"]);
    clippy.args(lints);
    succeeded(clippy);

    succeeded(cargo(folder, &["build", "--quiet"]));
    handles_a_message(folder).await;
}

/// The table, the program, the message, and the signal.
async fn handles_a_message(folder: &Path) {
    let database = format!("sqlite://{}?mode=rwc", folder.join("app.db").display());
    let pool = SqlitePool::connect(&database).await.expect("a database");
    let table = "CREATE TABLE invoices (order_id, amount_cents)";
    assert!(
        readme::TEXT.contains(&format!("`sqlite3 app.db \"{table}\"`")),
        "the README makes another table"
    );
    sqlx::query(table).execute(&pool).await.expect("the table");
    let broker = Embedded::file(folder.join("broker.db"));
    for _ in 0..2 {
        let order = Message::new("order.created", r#"{"order_id": "o1", "amount_cents": 4200}"#);
        broker.publish(order.id("evt-1")).await.expect("published");
    }

    let line = readme::block_with("sh", "DATABASE_URL=sqlite://app.db");
    let (variables, command) = line.trim().split_at(line.find("cargo").expect("cargo"));
    assert_eq!(command, "cargo run");
    let variables = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
    let mut program = Command::new(folder_of_builds().join("debug/outside"))
        .current_dir(folder)
        .envs(variables)
        .stdout(Stdio::null())
        .spawn()
        .expect("the program");
    eventually("both deliveries are settled", || async {
        let billing = broker.consumer("billing", "order.created").await.expect("the broker");
        billing.is_some_and(|consumer| consumer.acked == 2)
    })
    .await;
    let invoices: i64 = sqlx::query_scalar("SELECT count(*) FROM invoices")
        .fetch_one(&pool)
        .await
        .expect("a count");
    assert_eq!(invoices, 1);
    kill_process(Pid::from_child(&program), Signal::TERM).expect("it runs");
    let ended = tokio::task::spawn_blocking(move || program.wait());
    let ended = tokio::time::timeout(Duration::from_mins(2), ended).await;
    let status = ended.expect("it ends").expect("the task").expect("its status");
    assert!(status.success(), "{status}");
}

/// That of the workspace: what is built of others with the same features is there already.
fn folder_of_builds() -> &'static Path {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.expect("the target folder")
}
