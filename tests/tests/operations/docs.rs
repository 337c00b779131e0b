//! The pages have the tables that the code has. `UPDATE_DOCS=1` writes them anew.

use std::{fs, path::PathBuf};

use inbox_runtime::config;

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares the table behind `head` in a page, or writes it.
fn assert_table(page: &str, head: &str, rows: &[String]) {
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
