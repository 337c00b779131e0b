//! Reads the environment's variables.

use std::ffi::OsString;

use super::{
    setting::{self, Setting},
    settings::{self, Row},
    value::{Given, Secret, nearest},
    values::{Config, DATABASE_URL},
};

/// The variables that are settings.
#[derive(Default)]
pub(super) struct Variables {
    /// What `INBOX_CONFIG` names.
    pub(super) file: Option<OsString>,
    /// Setting, variable, value.
    values: Vec<(&'static Row, String, OsString)>,
    /// Option, variable, value.
    nats: Vec<(&'static str, String, OsString)>,
    /// Property, variable, value.
    kafka: Vec<(String, String, OsString)>,
}

impl Variables {
    /// Sorts out all variables, and warns of those that look like settings and aren't.
    pub(super) fn sort(variables: impl Iterator<Item = (String, OsString)>) -> Self {
        let mut found = Self::default();
        for (name, value) in variables {
            // A variable that is set to nothing is how many a platform says "unset".
            if value.is_empty() {
                continue;
            }
            let is_named = |setting: &Setting| setting.variable == Some(&name);
            if is_named(&setting::CONFIG) {
                found.file = Some(value);
            } else if let Some(row) = settings::ROWS.iter().find(|row| is_named(&row.setting)) {
                found.values.push((row, name, value));
            } else if let Some((option, _)) = setting::nats_options().find(|(_, setting)| is_named(setting)) {
                found.nats.push((option, name, value));
            } else if let Some(property) = name.strip_prefix(setting::KAFKA_PREFIX) {
                // No property of librdkafka has an underscore.
                let property = property.to_ascii_lowercase().replace('_', ".");
                found.kafka.push((property, name, value));
            } else {
                warn_unknown(&name);
            }
        }
        found
    }

    /// Lays them over what the file says.
    pub(super) fn set(self, config: &mut Config, problems: &mut Vec<String>) {
        if self.values.iter().any(|(_, name, _)| name == DATABASE_URL) {
            // The database that the environment names wins, also over a more special name of it in the file.
            config.database_urls.clear();
        }
        for (option, name, value) in self.nats {
            match value.to_str().map(str::trim) {
                Some("") => {}
                Some(value) => drop(config.nats.insert(option, given(value, name))),
                None => problems.push(not_utf8(&name)),
            }
        }
        for (property, name, value) in self.kafka {
            match value.to_str() {
                Some(value) => drop(config.kafka.insert(property, given(value.trim(), name))),
                None => problems.push(not_utf8(&name)),
            }
        }
        for (row, name, value) in self.values {
            let set = match value.to_str().map(str::trim) {
                Some("") => Ok(()),
                Some(value) => (row.set)(config, value, &name),
                None => Err("it is not UTF-8".to_owned()),
            };
            if let Err(problem) = set {
                let meaning = row.setting.meaning;
                problems.push(format!("the environment variable {name} ({meaning}): {problem}"));
            }
        }
    }
}

fn given(value: &str, name: String) -> Given<Secret> {
    Given {
        value: Secret(value.to_owned()),
        place: name,
    }
}

fn not_utf8(name: &str) -> String {
    format!("the environment variable {name}: it is not UTF-8")
}

/// Warns only: a container platform makes variables such as `INBOX_PORT` for a service called inbox.
fn warn_unknown(name: &str) {
    if name.starts_with("INBOX_") {
        let known = settings::reference();
        let known = known.iter().filter_map(|setting| setting.variable);
        tracing::warn!(
            variable = name,
            nearest = nearest(name, known),
            "an unknown environment variable begins with INBOX_"
        );
    }
}
