//! Handlers in a library crate: they are found if the program names the crate, and the program doesn't start if not.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output},
};

use inbox_tests::process::long;

fn run(program: impl AsRef<Path>) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    Command::new(program.as_ref())
        .current_dir(folder.path())
        .env("INBOX_BROKER_URL", "embedded:broker.db")
        .env("DATABASE_URL", "sqlite://app.db?mode=rwc")
        .env("INBOX_GROUPS", "linked")
        .output()
        .expect("the program")
}

/// Both handlers are there, also that of a module which nobody names.
fn finds_its_handlers(linked: impl AsRef<Path>) {
    let output = run(linked);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(),
        ["inbox_tests_handlers::bill", "inbox_tests_handlers::shipping::ship"]
    );
}

fn has_no_handlers(unlinked: impl AsRef<Path>) {
    let output = run(unlinked);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no handlers are registered"), "{error}");
    assert!(error.contains("inbox_runtime::link!"), "{error}");
}

#[test]
fn f84_a_linked_crate_has_its_handlers() {
    finds_its_handlers(env!("CARGO_BIN_EXE_linked"));
}

#[test]
fn f84_a_crate_that_is_not_linked_is_a_start_error() {
    has_no_handlers(env!("CARGO_BIN_EXE_unlinked"));
}

/// The optimiser of the whole program must not drop a registration either.
#[test]
fn f84_the_same_holds_after_link_time_optimisation() {
    if !long() {
        // Past the test harness, which keeps the output of tests that pass.
        let _ = writeln!(
            std::io::stderr(),
            "left out, since it rebuilds everything: set INBOX_TEST_LONG=1"
        );
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("the target folder");
    let built = Command::new(env!("CARGO"))
        .current_dir(root)
        .args([
            "build",
            "--quiet",
            "--profile",
            "lto",
            "-p",
            "inbox-tests",
            "--bin",
            "linked",
            "--bin",
            "unlinked",
        ])
        .arg("--target-dir")
        .arg(target)
        .status()
        .expect("cargo");
    assert!(built.success());
    finds_its_handlers(target.join("lto/linked"));
    has_no_handlers(target.join("lto/unlinked"));
}
