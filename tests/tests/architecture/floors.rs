//! The floors of the runtime's sources: no module uses, over however many others, one that uses it. `ARCHITECTURE.md` draws them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The folders whose modules must not go in a circle. Beside a folder's other modules its `mod.rs` is one of them.
const FLOORS: &[&str] = &[
    "",
    "broker/embedded",
    "broker/kafka",
    "broker/nats",
    "config",
    "consumer",
    "pipeline",
    "services",
    "store",
    "store/postgres",
    "store/sqlite",
    "telemetry",
    "testing",
];

#[test]
fn no_modules_use_each_other_in_a_circle() {
    let sources = Sources::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../inbox-runtime/src"));
    for folder in FLOORS {
        let graph = sources.graph(folder);
        assert!(graph.0.len() > 2, "the modules of `{folder}` are read");
        if let Some(circle) = graph.circle() {
            panic!("modules of `src/{folder}` use each other in a circle; one of these must not:\n{circle}");
        }
    }
}

/// A module by the names from the root of the crate to it.
type Module = Vec<String>;

/// The files of a crate.
struct Sources {
    files: BTreeMap<Module, (PathBuf, TokenStream)>,
    /// The items that stand in the root of the crate, with the module that has them.
    root: BTreeMap<String, Module>,
}

impl Sources {
    fn read(folder: &Path) -> Self {
        let mut files = BTreeMap::new();
        read_folder(folder, folder, &mut files);
        let root = files.get(&Module::new()).map(|(_, tokens)| root_items(tokens.clone()));
        Self {
            files,
            root: root.expect("lib.rs"),
        }
    }

    /// The module that has what a path names, which begins in the root of the crate.
    fn module_of(&self, path: &[String]) -> Option<&Module> {
        let path = match path.first().and_then(|first| self.root.get(first)) {
            Some(module) if !self.files.contains_key(&path[..1]) => module,
            _ => path,
        };
        let (module, _) = (0..=path.len())
            .rev()
            .find_map(|end| self.files.get_key_value(&path[..end]))?;
        Some(module)
    }

    /// What the modules of a folder use of each other.
    fn graph(&self, folder: &str) -> Graph {
        let folder: Module = folder
            .split('/')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let place = |module: &Module| -> Option<String> {
            let inside = module.strip_prefix(folder.as_slice())?;
            match inside.first() {
                Some(name) => Some(name.clone()),
                // The root of the crate uses everything.
                None => (!folder.is_empty()).then(|| "mod".to_owned()),
            }
        };
        let mut graph = Graph::default();
        for (module, (file, tokens)) in &self.files {
            let Some(from) = place(module) else { continue };
            let arrows = graph.0.entry(from.clone()).or_default();
            let mut paths = Vec::new();
            used_paths(tokens.clone(), module, &self.children(module), &mut paths);
            for path in paths {
                let to = self.module_of(&path).and_then(&place);
                if let Some(to) = to.filter(|to| *to != from) {
                    arrows
                        .entry(to)
                        .or_insert_with(|| format!("{} uses `{}`", file.display(), path.join("::")));
                }
            }
        }
        graph
    }

    fn children(&self, module: &[String]) -> BTreeSet<String> {
        let names = self.files.keys().filter_map(|other| match other.strip_prefix(module)? {
            [name] => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }
}

fn read_folder(root: &Path, folder: &Path, files: &mut BTreeMap<Module, (PathBuf, TokenStream)>) {
    for entry in fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("the sources").path();
        if path.is_dir() {
            read_folder(root, &path, files);
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        if path.extension().is_none_or(|extension| extension != "rs") || name == "tests" {
            continue;
        }
        let file = path.strip_prefix(root).expect("beneath the root").to_owned();
        let mut module: Module = file
            .iter()
            .map(|name| name.to_string_lossy().trim_end_matches(".rs").to_owned())
            .collect();
        if name == "mod" || module == ["lib"] {
            module.pop();
        }
        let text = fs::read_to_string(&path).expect("the sources");
        let tokens = text
            .parse()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        files.insert(module, (file, tokens));
    }
}

/// The names behind `pub use` in the root, each with the module that it comes from.
fn root_items(tokens: TokenStream) -> BTreeMap<String, Module> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut items = BTreeMap::new();
    for (index, token) in tokens.iter().enumerate() {
        if is_ident(token, "use") {
            for mut path in read_paths(&tokens[index + 1..]) {
                if let Some(name) = path.pop() {
                    items.insert(name, path);
                }
            }
        }
    }
    items
}

/// Collects the paths that begin with `crate`, `super`, `self` or the name of a module inside this one.
fn used_paths(tokens: TokenStream, module: &[String], children: &BTreeSet<String>, paths: &mut Vec<Module>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match token {
            TokenTree::Group(group) => used_paths(group.stream(), module, children, paths),
            TokenTree::Ident(ident) if !(index > 0 && is_colon(&tokens[index - 1])) => {
                let name = ident.to_string();
                if name == "mod" && is_test(&tokens[..index]) {
                    // Its name and what is in it.
                    index += 2;
                } else if is_path(&tokens[index + 1..]) {
                    let rest = &tokens[index + 3..];
                    let mut start = match name.as_str() {
                        "crate" => Module::new(),
                        "self" => module.to_vec(),
                        "super" => parent(module),
                        child if children.contains(child) => [module, &[name]].concat(),
                        _ => {
                            index += 1;
                            continue;
                        }
                    };
                    let mut rest = rest;
                    while rest.first().is_some_and(|token| is_ident(token, "super")) && is_path(&rest[1..]) {
                        start = parent(&start);
                        rest = &rest[3..];
                    }
                    paths.extend(read_paths(rest).into_iter().map(|path| [start.clone(), path].concat()));
                }
            }
            _ => {}
        }
        index += 1;
    }
}

/// The paths that begin with these tokens: several where a group of them is used.
fn read_paths(tokens: &[TokenTree]) -> Vec<Module> {
    match tokens.first() {
        Some(TokenTree::Ident(name)) if is_path(&tokens[1..]) => {
            let rest = read_paths(&tokens[3..]);
            rest.into_iter()
                .map(|path| [vec![name.to_string()], path].concat())
                .collect()
        }
        Some(TokenTree::Ident(name)) => vec![vec![name.to_string()]],
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let tokens: Vec<_> = group.stream().into_iter().collect();
            let parts = tokens.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','));
            // Behind a trailing comma there is nothing.
            parts.filter(|part| !part.is_empty()).flat_map(read_paths).collect()
        }
        // A star, or a path of types.
        _ => vec![Module::new()],
    }
}

fn parent(module: &[String]) -> Module {
    let (_, parent) = module.split_last().expect("`super` of the root");
    parent.to_vec()
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':')
}

fn is_path(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [first, second, _, ..] if is_colon(first) && is_colon(second))
}

/// Whether what comes behind these tokens is there in tests only.
fn is_test(before: &[TokenTree]) -> bool {
    matches!(before, [.., TokenTree::Group(attribute)] if attribute.to_string().replace(' ', "") == "[cfg(test)]")
}

/// What each module uses, with one place where it does.
#[derive(Default)]
struct Graph(BTreeMap<String, BTreeMap<String, String>>);

impl Graph {
    /// The arrows of a circle, a line for each, if there is one.
    fn circle(&self) -> Option<String> {
        let mut done = BTreeSet::new();
        self.0
            .keys()
            .find_map(|start| self.walk(start, &mut Vec::new(), &mut done))
    }

    fn walk<'a>(&'a self, at: &'a str, way: &mut Vec<&'a str>, done: &mut BTreeSet<&'a str>) -> Option<String> {
        if let Some(start) = way.iter().position(|module| *module == at) {
            let circle = &way[start..];
            let next = circle.iter().cycle().skip(1);
            let arrows = circle.iter().zip(next).map(|(from, to)| {
                let place = self.0.get(*from).and_then(|arrows| arrows.get(*to));
                format!("  {from} -> {to}: {}", place.map_or("", String::as_str))
            });
            return Some(arrows.collect::<Vec<_>>().join("\n"));
        }
        if !done.insert(at) {
            return None;
        }
        way.push(at);
        let found = self.0.get(at)?.keys().find_map(|to| self.walk(to, way, done));
        way.pop();
        found
    }
}

#[test]
fn a_circle_is_found_and_its_arrows_are_named() {
    let sources = |files: &[(&str, &str)]| Sources {
        files: files
            .iter()
            .map(|(path, text)| {
                let module = path
                    .split('/')
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect();
                (module, (PathBuf::from(path), text.parse().expect("tokens")))
            })
            .collect(),
        root: root_items("pub use c::{Item, Other};".parse().expect("tokens")),
    };
    let circle = sources(&[
        ("", "mod a; mod b; mod c;"),
        ("a", "use crate::{b::{self, Thing}, c};"),
        ("a/inner", "fn f() { super::super::b::g(); }"),
        ("b", "fn g() { macro_call!(crate::Item); }"),
        (
            "c",
            "#[cfg(test)] mod tests { use crate::b; } impl X for crate::a::inner::Y {}",
        ),
    ]);
    let found = circle.graph("").circle().expect("a circle");
    for arrow in [
        "a -> b: a uses `b",
        "b -> c: b uses `Item`",
        "c -> a: c uses `a::inner::Y`",
    ] {
        assert!(found.contains(arrow), "{found}");
    }
    let straight = sources(&[
        ("", "mod a; mod b; mod c;"),
        ("a", "use crate::{b::Thing, c};"),
        ("b", "use crate::Item;"),
        ("c", "#[cfg(test)] mod tests { use crate::b; }"),
    ]);
    assert_eq!(straight.graph("").circle(), None);
}
