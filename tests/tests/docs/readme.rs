//! The texts of the project as its tests read them: the blocks of code in them, and what the examples print.

use std::{path::Path, process::Command};

/// The README.
pub(crate) const TEXT: &str = include_str!("../../../README.md");

/// A block of code, with the word behind its opening fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The language, as in `sh` or `rust,no_run`.
    pub(crate) language: String,
    /// What stands in it, with a line break at its end.
    pub(crate) code: String,
}

/// The blocks of code in a text, in order.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block {
                    language: language.to_owned(),
                    code: String::new(),
                });
            }
            (None, Some(block)) => {
                block.code.push_str(line);
                block.code.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The first block of the README in that language with that text in it.
pub(crate) fn block_with(language: &str, text: &str) -> String {
    let found = blocks(TEXT)
        .into_iter()
        .find(|block| block.language == language && block.code.contains(text));
    found
        .unwrap_or_else(|| panic!("the README has no block of {language} with `{text}`"))
        .code
}

/// What an example prints, run on its defaults.
pub(crate) fn run_example(name: &str) -> String {
    run_example_on(name, "", &[])
}

/// What an example prints, run with features, on the servers that these variables name. It is built as a user builds it,
/// unless `INBOX_TEST_EXAMPLES` names the folder where all of them are, with every feature.
pub(crate) fn run_example_on(name: &str, features: &str, servers: &[(&str, &str)]) -> String {
    let mut command = if let Some(folder) = std::env::var_os("INBOX_TEST_EXAMPLES") {
        Command::new(Path::new(&folder).join(name))
    } else {
        let mut command = Command::new(env!("CARGO"));
        command.args(["run", "--quiet", "--package", "inbox-examples", "--example", name]);
        command.args(["--features", features]);
        command
    };
    for variable in ["INBOX_BROKER_URL", "DATABASE_URL"] {
        command.env_remove(variable);
    }
    command.envs(servers.iter().copied());
    output(command)
}

/// What a command prints that runs in the tests' folder and succeeds.
pub(crate) fn output(mut command: Command) -> String {
    let output = command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .expect("the command runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}
