//! Every setting of a program: code over environment over file. Nothing else reads the environment.
//!
//! What there is to set is in [`reference()`].

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::store::MigrateMode;

mod file;
mod overrides;
mod settings;

pub(crate) use overrides::Overrides;
pub(crate) use settings::prefix;
pub use settings::{Kind, Setting, reference};

/// A value that is not to be shown: URLs carry passwords.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A value and where it was found, for the error of whoever can't use it.
#[derive(Clone, Debug)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    /// The variable's name, or `inbox.toml:3`.
    pub(crate) place: String,
}

/// What was set; `None` is unset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) database_url: Option<Given<Secret>>,
    pub(crate) sqlite_url: Option<Given<Secret>>,
    pub(crate) postgres_url: Option<Given<Secret>>,
    pub(crate) broker_url: Option<Given<Secret>>,
    pub(crate) groups: Option<Vec<String>>,
    pub(crate) subject_prefix: Option<String>,
    pub(crate) migrate: Option<MigrateMode>,
    pub(crate) ack_wait: Option<Duration>,
    pub(crate) lock_wait: Option<Duration>,
    pub(crate) commit_timeout: Option<Duration>,
    pub(crate) stall_after: Option<Duration>,
    pub(crate) pool_size: Option<u32>,
    pub(crate) transaction_pooler: Option<bool>,
    pub(crate) shutdown_timeout: Option<Duration>,
    pub(crate) http_addr: Option<Given<SocketAddr>>,
    /// The properties of librdkafka.
    pub(crate) kafka: BTreeMap<String, Given<Secret>>,
    pub(crate) overrides: Overrides,
}

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
        let (mut values, mut kafka, mut named) = (Vec::new(), Vec::new(), None);
        for (name, value) in variables {
            // A variable that is set to nothing is how many a platform says "unset".
            if value.is_empty() {
                continue;
            }
            if Some(name.as_str()) == settings::CONFIG.variable {
                named = Some(PathBuf::from(value));
            } else if let Some(row) = settings::ROWS.iter().find(|row| row.setting.variable == Some(&name)) {
                values.push((row, name, value));
            } else if let Some(property) = name.strip_prefix(settings::KAFKA_PREFIX) {
                // No property of librdkafka has an underscore.
                let property = property.to_ascii_lowercase().replace('_', ".");
                kafka.push((property, name, value));
            } else {
                warn_unknown(&name);
            }
        }
        let mut config = Self::default();
        match file.map(Path::to_owned).or(named) {
            Some(path) => file::read(&path, true, &mut config, problems),
            None => file::read(Path::new("inbox.toml"), false, &mut config, problems),
        }
        if values.iter().any(|(_, name, _)| name == "DATABASE_URL") {
            // The database that the environment names wins, also over a more special name of it in the file.
            config.sqlite_url = None;
            config.postgres_url = None;
        }
        for (property, name, value) in kafka {
            match value.into_string() {
                Ok(value) => {
                    let value = Secret(value.trim().to_owned());
                    config.kafka.insert(property, Given { value, place: name });
                }
                Err(_) => problems.push(format!("the environment variable {name}: it is not UTF-8")),
            }
        }
        for (row, name, value) in values {
            let set = match value.to_str().map(str::trim) {
                Some("") => Ok(()),
                Some(value) => (row.set)(&mut config, value, &name),
                None => Err("it is not UTF-8".to_owned()),
            };
            if let Err(problem) = set {
                let meaning = row.setting.meaning;
                problems.push(format!("the environment variable {name} ({meaning}): {problem}"));
            }
        }
        config
    }
}

/// Warns only: a container platform makes variables such as `INBOX_PORT` for a service called inbox.
fn warn_unknown(name: &str) {
    if name.starts_with("INBOX_") {
        let known = reference();
        let known = known.iter().filter_map(|setting| setting.variable);
        tracing::warn!(
            variable = name,
            nearest = nearest(name, known),
            "an unknown environment variable begins with INBOX_"
        );
    }
}

/// The known name that looks most like `name`.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known
        .min_by_key(|known| strsim::damerau_levenshtein(known, name))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
