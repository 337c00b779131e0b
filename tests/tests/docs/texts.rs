//! What the texts of the project say about commands and outputs is so: every command names what exists, every output that
//! is quoted is printed.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;

use crate::readme::{Block, TEXT, blocks, output, run_example};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// Every text with its name: those in the root, the guide, and the heads of the examples.
fn texts() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for folder in ["inbox-runtime/docs", "examples", "examples/pair"] {
        let files = fs::read_dir(root().join(folder)).expect("a folder");
        paths.extend(
            files
                .map(|file| file.expect("a file").path())
                .filter(|path| path.is_file()),
        );
    }
    paths.sort();
    let text = |path: &Path| match path.extension().and_then(|extension| extension.to_str()) {
        Some("md") => fs::read_to_string(path).ok(),
        Some("rs") => fs::read_to_string(path).ok().map(|text| {
            let lines = text.lines().filter_map(|line| line.strip_prefix("//!"));
            lines
                .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
                .collect()
        }),
        _ => None,
    };
    let named = |path: &Path| Some((path.strip_prefix(root()).ok()?.display().to_string(), text(path)?));
    paths.iter().filter_map(|path| named(path)).collect()
}

/// The commands with `cargo` in a text: lines of its shell blocks, and spans of code.
fn commands(text: &str) -> Vec<String> {
    let mut commands: Vec<String> = blocks(text)
        .into_iter()
        .filter(|block| ["sh", "text"].contains(&block.language.as_str()))
        .flat_map(|block| block.code.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let mut fenced = false;
    let prose: Vec<&str> = text
        .lines()
        .filter(|line| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
        .collect();
    // A span may go over the end of a line.
    commands.extend(prose.join(" ").split('`').skip(1).step_by(2).map(str::to_owned));
    commands.retain(|command| command.split_whitespace().find(|word| !word.contains('=')) == Some("cargo"));
    commands
}

/// What cargo knows of the workspace.
struct Workspace(Vec<Value>);

impl Workspace {
    fn new() -> Self {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
        let metadata: Value = serde_json::from_str(&output(command)).expect("JSON");
        Self(metadata["packages"].as_array().expect("packages").clone())
    }

    fn package(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|package| package["name"] == name)
    }

    fn has_feature(&self, package: &str, feature: &str) -> bool {
        self.package(package)
            .is_some_and(|package| !package["features"][feature].is_null())
    }

    fn has_target(&self, package: &str, kind: &str, name: &str) -> bool {
        let targets = self.package(package).and_then(|package| package["targets"].as_array());
        targets
            .into_iter()
            .flatten()
            .any(|target| target["name"] == name && target["kind"][0] == kind)
    }

    fn targets(&self, package: &str, kind: &str) -> BTreeSet<String> {
        let targets = self.package(package).and_then(|package| package["targets"].as_array());
        let targets = targets.into_iter().flatten().filter(|target| target["kind"][0] == kind);
        targets
            .filter_map(|target| target["name"].as_str())
            .map(str::to_owned)
            .collect()
    }

    /// What a command names that isn't there.
    fn missing(&self, command: &str) -> Vec<String> {
        const KNOWN: [&str; 6] = ["run", "test", "clippy", "fmt", "bench", "doc"];
        let mut words = command.split_whitespace().skip_while(|word| *word != "cargo").skip(1);
        let mut missing = Vec::new();
        match words.next() {
            Some(word) if KNOWN.contains(&word) => {}
            // `cargo` alone is the program.
            None => {}
            Some(word) => missing.push(format!("the subcommand {word}")),
        }
        let words: Vec<_> = words.take_while(|word| *word != "--").collect();
        let value = |flags: &[&str]| {
            let found = words.windows(2).find(|pair| flags.contains(&pair[0]));
            found.map(|pair| pair[1]).filter(|value| !is_placeholder(value))
        };
        let package = value(&["-p", "--package"]);
        if let Some(package) = package.filter(|package| self.package(package).is_none()) {
            missing.push(format!("the package {package}"));
        }
        for (flag, kind) in [
            ("--example", "example"),
            ("--test", "test"),
            ("--bin", "bin"),
            ("--bench", "bench"),
        ] {
            let Some(name) = value(&[flag]) else { continue };
            if !package.is_some_and(|package| self.has_target(package, kind, name)) {
                missing.push(format!("the {kind} {name}"));
            }
        }
        for feature in value(&["--features"]).into_iter().flat_map(|list| list.split(',')) {
            let (package, feature) = feature
                .split_once('/')
                .unwrap_or((package.unwrap_or_default(), feature));
            if !self.has_feature(package, feature) {
                missing.push(format!("the feature {feature} of {package}"));
            }
        }
        missing
    }
}

fn is_placeholder(word: &str) -> bool {
    word.starts_with(['<', '…', '[']) || word.chars().all(|letter| letter.is_ascii_uppercase())
}

#[test]
fn every_command_names_what_exists() {
    let workspace = Workspace::new();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, text) in texts() {
        for command in commands(&text) {
            seen += 1;
            let missing = workspace.missing(&command);
            wrong.extend(
                missing
                    .iter()
                    .map(|what| format!("{name}: `{command}`: there is no {what}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 15, "only {seen} commands were found");
}

#[test]
fn a_command_that_names_what_is_not_there_is_found() {
    let workspace = Workspace::new();
    for (command, count) in [
        ("cargo run -p inbox-examples --example quickstart", 0),
        ("cargo run -p inbox-examples --example no_such", 1),
        ("cargo run -p no-such --example quickstart", 2),
        (
            "A=b cargo test -p inbox-tests --features postgres,no-such --test test_kit",
            1,
        ),
        ("cargo tset", 1),
        ("cargo test -p inbox-tests --test <name>", 0),
        ("cargo run -p inbox-tests --bin servers -- [postgres] -- COMMAND", 0),
    ] {
        assert_eq!(
            workspace.missing(command).len(),
            count,
            "{command}: {:?}",
            workspace.missing(command)
        );
    }
    let text = "See `cargo test -p\na`, `b`.\n```sh\nA=1 cargo run\n./tests/run\n```\nAnd `cargo`.";
    assert_eq!(commands(text), ["A=1 cargo run", "cargo test -p a", "cargo"]);
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    for (name, text) in texts().into_iter().filter(|(name, _)| name.ends_with(".md")) {
        let folder = root().join(&name);
        let folder = folder.parent().expect("a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            // Those to the web and into the code are not files; rustdoc checks the latter.
            if path.starts_with("http") || path.contains("::") {
                continue;
            }
            assert!(path.is_empty() || folder.join(path).exists(), "{name}: {target}");
            let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
            let mut anchors = headings.map(|line| line.trim_matches(['#', ' ']).to_lowercase().replace(' ', "-"));
            assert!(
                !path.is_empty() || anchors.any(|there| there == anchor),
                "{name}: {target}"
            );
        }
    }
}

/// A command of an example, and the block behind it.
fn quoted(blocks: &[Block]) -> Option<(&str, &str)> {
    let [command, output] = blocks else { return None };
    let example = command
        .code
        .trim()
        .strip_prefix("cargo run -p inbox-examples --example ")?;
    (command.language == "sh" && output.language == "text").then_some((example, &output.code))
}

#[test]
fn b13_what_is_quoted_is_what_the_examples_print() {
    let readme = blocks(TEXT);
    let quotes: Vec<_> = readme.windows(2).filter_map(quoted).collect();
    assert_eq!(quotes.len(), 1, "{quotes:?}");
    for (example, text) in quotes {
        assert_eq!(run_example(example), text, "{example}");
    }
    // The page quotes the end of it; what is above are versions.
    let page = blocks(include_str!("../../../inbox-runtime/docs/ack_strategies.md"));
    let table = page.iter().find(|block| block.language == "text").expect("the table");
    let printed = run_example("ack_lab");
    assert!(printed.ends_with(&table.code), "{printed}");
}

#[test]
fn the_examples_print_what_they_should() {
    let report = "skipped=0 duplicate=0 locked=0 failed=0";
    let path = "the payload is not the expected JSON at `cents`: invalid type: string \"many\", expected i64 at line 1 column 34";
    assert_eq!(
        run_example("custom_extractor"),
        format!(
            "processed=2 {report} dead_lettered=3 deferred=0 acked=5 ack_failures=0\n\
             booked: north o1 4200\nbooked: south o5 700\n\
             dead letter 2: a payment of 0 cents is none\n\
             dead letter 3: {path}\n\
             dead letter 4: the header `tenant` is missing\n"
        )
    );
    assert_eq!(
        run_example("library_crate"),
        format!(
            "billing_handlers::open_account takes customer.created for billing\n\
             billing_handlers::create_invoice takes order.created for billing\n\
             processed=2 {report} dead_lettered=0 deferred=0 acked=2 ack_failures=0\n\
             invoices=1 accounts=1\n"
        )
    );
    assert_eq!(
        run_example("manual_claim"),
        "evt-1: Booked\nevt-1: BookedBefore\nevt-2: a payment of 0 cents is none\nevt-2: Booked\npayments=2\n"
    );
}

#[test]
fn every_example_is_listed() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "inbox-examples"]);
    let listed = output(command);
    let names = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    assert_eq!(names, Workspace::new().targets("inbox-examples", "example"));
    assert!(listed.contains("(left out: needs `--features axum`)"), "{listed}");
}
