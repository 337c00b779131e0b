//! The programs of the servers, downloaded once and kept in `target/services`.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The folder of that name. If it isn't there, `fetch` is given a scratch folder and an empty one to fill.
///
/// The lock keeps other threads and processes from fetching the same, and Maven from running twice on its repository. The
/// folder appears under its name when it is complete.
pub(super) fn downloaded(
    name: &str,
    fetch: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let services: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/services")
        .components()
        .collect();
    let folder = services.join(name);
    if folder.exists() {
        return Ok(folder);
    }
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&services).map_err(failed)?;
    let lock = File::create(services.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!("downloading {name} into {}", services.display());
    let scratch = tempfile::tempdir_in(&services).map_err(failed)?;
    let complete = scratch.path().join("complete");
    fs::create_dir(&complete).map_err(failed)?;
    fetch(scratch.path(), &complete)?;
    fs::rename(&complete, &folder).map_err(failed)?;
    Ok(folder)
}
