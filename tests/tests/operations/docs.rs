//! The pages have the tables that the code has. `UPDATE_DOCS=1` writes them anew.

use std::{fs, path::PathBuf};

use inbox_runtime::{Outcome, config, telemetry};
use parking_lot::Mutex;

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// One test at a time reads and writes pages.
static PAGES: Mutex<()> = Mutex::new(());

/// Compares the table behind `head` in a page, or writes it.
fn assert_table(page: &str, head: &str, rows: &[String]) {
    let _turn = PAGES.lock();
    let path = repository(page);
    let text = fs::read_to_string(&path).expect(page);
    let (before, rest) = text.split_once(head).unwrap_or_else(|| panic!("no `{head}` in {page}"));
    let rule = rest.lines().nth(1).expect("the rule under the head");
    let table: Vec<_> = rest.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let behind: String = rest.split_inclusive('\n').skip(2 + table.len()).collect();
        let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(&path, format!("{before}{head}\n{rule}\n{rows}{behind}")).expect("written");
    } else {
        assert_eq!(table, rows, "the table of {page}; UPDATE_DOCS=1 writes it anew");
    }
}

fn code(text: Option<&str>) -> String {
    text.map_or(String::new(), |text| format!("`{text}`"))
}

#[test]
fn the_page_on_configuration_has_every_setting() {
    let rows: Vec<_> = config::reference()
        .iter()
        .map(|setting| {
            let key = setting.key.map(|key| match setting.variable {
                Some(_) => key.to_owned(),
                None => format!("handlers.….{key}"),
            });
            format!(
                "| {} | {} | {}, `{}` | {} | {} |",
                code(key.as_deref()),
                code(setting.variable),
                setting.kind.as_str(),
                setting.example,
                setting.default.unwrap_or_default(),
                setting.meaning
            )
        })
        .collect();
    assert_table(
        "inbox-runtime/docs/configuration.md",
        "| in the file | in the environment | what it is | default | meaning |",
        &rows,
    );
}

#[test]
fn the_readme_has_every_variable() {
    let readme = fs::read_to_string(repository("README.md")).expect("the README");
    for variable in config::reference().iter().filter_map(|setting| setting.variable) {
        assert!(readme.contains(&format!("`{variable}`")), "no {variable} in the README");
    }
}

const TELEMETRY: &str = "inbox-runtime/docs/telemetry.md";

#[test]
fn the_page_on_telemetry_has_every_field() {
    let rows = |on_span: bool| {
        let fields = telemetry::FIELDS.iter().filter(move |field| field.on_span == on_span);
        fields
            .map(|field| format!("| `{}` | {} |", field.name, field.meaning))
            .collect::<Vec<_>>()
    };
    assert_table(TELEMETRY, "| field of the span | meaning |", &rows(true));
    assert_table(TELEMETRY, "| field of an event | meaning |", &rows(false));
}

#[test]
fn the_page_on_telemetry_has_every_metric() {
    let rows: Vec<_> = telemetry::METRICS
        .iter()
        .map(|metric| {
            let label = code(metric.label);
            format!(
                "| `{}` | {} | {label} | {} |",
                metric.name,
                metric.kind.as_str(),
                metric.meaning
            )
        })
        .collect();
    assert_table(TELEMETRY, "| metric | kind | extra label | meaning |", &rows);
}

#[test]
fn the_page_on_telemetry_has_every_metric_of_an_outbox() {
    let row =
        |metric: &telemetry::Metric| format!("| `{}` | {} | {} |", metric.name, metric.kind.as_str(), metric.meaning);
    let rows: Vec<_> = telemetry::OUTBOX_METRICS.iter().map(row).collect();
    assert_table(TELEMETRY, "| metric | kind | meaning |", &rows);
}

#[test]
fn the_page_on_telemetry_has_every_outcome() {
    let page = fs::read_to_string(repository(TELEMETRY)).expect(TELEMETRY);
    for outcome in Outcome::ALL {
        assert!(page.contains(&format!("`{outcome}`")), "no {outcome} in {TELEMETRY}");
    }
}
