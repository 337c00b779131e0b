//! Every setting of a program: code over environment over file. Nothing else reads the environment.
//!
//! ```text
//!  floors; a line uses only itself and what is below it
//!    mod                 reads the environment and the file
//!    file · environment  read inbox.toml, and the variables
//!    settings            what has one value for the whole program
//!    values              what was found
//!    overrides · overlay
//!    document            the text of inbox.toml
//!    setting · value
//! ```
//!
//! What there is to set is in [`reference()`].

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

mod document;
mod environment;
mod file;
mod overlay;
mod overrides;
mod setting;
mod settings;
mod value;
mod values;

use environment::Variables;
pub(crate) use overlay::{ACK_WAIT, Layer, OutboxLimits, Settings};
pub use setting::{Kind, Setting};
pub(crate) use settings::prefix;
pub use settings::reference;
pub(crate) use value::{Given, Secret};
pub(crate) use values::{Config, DATABASE_URL};

impl Config {
    /// The settings of the environment and of the file: the one that the program names, else that of `INBOX_CONFIG`, else
    /// `inbox.toml` if it is there. Adds a text to `problems` for each that can't be used.
    pub(crate) fn load(file: Option<&Path>, problems: &mut Vec<String>) -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self::read(file, variables, problems)
    }

    fn read(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, OsString)>,
        problems: &mut Vec<String>,
    ) -> Self {
        let variables = Variables::sort(variables);
        let mut config = Self::default();
        match file.map(Path::to_owned).or(variables.file.clone().map(PathBuf::from)) {
            Some(path) => file::read(&path, true, &mut config, problems),
            None => file::read(Path::new("inbox.toml"), false, &mut config, problems),
        }
        variables.set(&mut config, problems);
        config
    }
}

#[cfg(test)]
mod tests;
