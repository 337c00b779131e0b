//! `tests/FAILURES.md` has a line for each id that a test's name begins with, and names the files that have its tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Each id with the files.
type Ids = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_list_of_ids_is_that_of_the_suite() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut shown = Ids::new();
    for folder in ["tests", "inbox-runtime", "inbox-macros"] {
        read_folder(root, &root.join(folder), &mut shown);
    }
    let text = fs::read_to_string(root.join("tests/FAILURES.md")).expect("the list");
    let listed: Ids = text.lines().filter_map(read_line).collect();
    assert!(listed.len() > 150, "the list is read");
    for (id, files) in &shown {
        let listed = listed.get(id);
        assert_eq!(
            Some(files),
            listed,
            "the line of {id} in tests/FAILURES.md must name these files"
        );
    }
    for id in listed.keys() {
        assert!(
            shown.contains_key(id),
            "no test's name begins with {id}; take its line out of tests/FAILURES.md"
        );
    }
}

/// `* F43 what it means: `a.rs`, `b.rs``
fn read_line(line: &str) -> Option<(String, BTreeSet<String>)> {
    let (id, rest) = line.strip_prefix("* ")?.split_once(' ')?;
    let (_, files) = rest.rsplit_once(": ")?;
    let files = files.split(", ").map(|file| {
        let file = file.trim_matches('`');
        let is_whole = file.starts_with("tests/") || file.starts_with("inbox-");
        if is_whole {
            file.to_owned()
        } else {
            format!("tests/tests/{file}")
        }
    });
    Some((id.to_owned(), files.collect()))
}

fn read_folder(root: &Path, folder: &Path, shown: &mut Ids) {
    for entry in fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("the sources").path();
        if path.is_dir() {
            read_folder(root, &path, shown);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            read_file(root, &path, shown);
        }
    }
}

fn read_file(root: &Path, path: &PathBuf, shown: &mut Ids) {
    let text = fs::read_to_string(path).expect("the sources");
    let file = path.strip_prefix(root).expect("in the workspace").display().to_string();
    // `fn ` itself is written so that this line names no function.
    for name in text.split(concat!("fn", " ")).skip(1) {
        for id in ids(name) {
            shown.entry(id).or_default().insert(file.clone());
        }
    }
}

/// The ids with which a name begins, as `F62` and `B18` of `b18_f62_…`.
fn ids(name: &str) -> Vec<String> {
    let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let words = name[..end.unwrap_or(name.len())].split('_');
    words.map_while(id).collect()
}

fn id(word: &str) -> Option<String> {
    let letter = word.chars().next().filter(|letter| "abfgl".contains(*letter))?;
    let number = word[1..].trim_end_matches(['a', 'b', 'c']);
    let is_id = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_id.then(|| format!("{}{}", letter.to_ascii_uppercase(), &word[1..]))
}

#[test]
fn an_id_is_read_from_the_beginning_of_a_name() {
    let read = |name| ids(name).join(" ");
    assert_eq!(read("b18_f62_random_kills<D>() {"), "B18 F62");
    assert_eq!(read("a2c_crash() {"), "A2c");
    for name in ["fresh() {", "g() {", "all_of_g03() {", "below_b18_() {"] {
        assert_eq!(read(name), "", "{name}");
    }
}
