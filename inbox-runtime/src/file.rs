//! The one name of a file.

use std::path::{Path, PathBuf};

/// The canonical path of a file, also of one that isn't there yet, as far as it can be told.
pub(crate) fn resolve(file: &Path) -> PathBuf {
    if let Ok(path) = file.canonicalize() {
        return path;
    }
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (parent.canonicalize(), file.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => file.to_owned(),
    }
}
