//! The guide as rustdoc shows it and as a site: the same pages, and no link that leads nowhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use inbox_tests::guide::{ITEMS, links, site_text};

fn runtime() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../inbox-runtime")
}

/// The pages by their file's name, as the site has them.
fn pages() -> BTreeMap<String, String> {
    let files = fs::read_dir(runtime().join("docs")).expect("the pages");
    let page = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        (name.ends_with(".md") && name != "SUMMARY.md").then(|| {
            let text = fs::read_to_string(&path).expect("a page");
            (name, site_text(&text))
        })
    };
    files.filter_map(|file| page(file.expect("a file").path())).collect()
}

/// The anchors of a page's sections.
fn anchors(page: &str) -> BTreeSet<String> {
    let heads = page.lines().filter_map(|line| line.strip_prefix('#'));
    let slug = |head: &str| {
        let words = head.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    heads.map(slug).collect()
}

#[test]
fn every_page_is_in_rustdoc_and_on_the_site() {
    let pages: BTreeSet<_> = pages().into_keys().collect();
    let summary = fs::read_to_string(runtime().join("docs/SUMMARY.md")).expect("the summary");
    let listed: BTreeSet<_> = links(&summary).into_iter().map(str::to_owned).collect();
    assert_eq!(listed, pages, "the pages of SUMMARY.md");
    let guide = fs::read_to_string(runtime().join("src/guide.rs")).expect("the guide");
    let included: BTreeSet<_> = guide
        .split("include_str!(\"../docs/")
        .skip(1)
        .filter_map(|text| Some(text.split_once('"')?.0.to_owned()))
        .collect();
    assert_eq!(included, pages, "the pages of guide.rs");
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let pages = pages();
    let mut followed = 0;
    for (name, text) in &pages {
        assert!(!text.contains("crate::"), "{name} has a path that the site can't show");
        for link in links(text) {
            followed += 1;
            // What is behind the first is checked by rustdoc, in the page itself.
            if link.starts_with(ITEMS) || link.starts_with("https://www.w3.org/") {
                continue;
            }
            let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
            let page = pages
                .get(page)
                .unwrap_or_else(|| panic!("{name} links to {link}, which isn't there"));
            assert!(
                anchor.is_empty() || anchors(page).contains(anchor),
                "{name} links to {link}, a section that isn't there"
            );
        }
    }
    assert!(followed > 20, "the links are found: {followed}");
}

#[test]
fn every_block_of_code_says_its_language() {
    for (name, text) in pages() {
        let fences: Vec<_> = text.lines().filter(|line| line.starts_with("```")).collect();
        for (opening, closing) in fences.iter().step_by(2).zip(fences.iter().skip(1).step_by(2)) {
            // Without one the site would show the lines that rustdoc hides.
            assert_ne!(*opening, "```", "{name} has a block of code without a language");
            assert_eq!(*closing, "```", "{name} has a block of code without an end");
        }
    }
}
