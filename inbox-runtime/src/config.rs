//! Every setting that a program takes from its environment; nothing else reads the environment.

use std::{fmt, time::Duration};

use crate::store::Migrate;

/// One setting.
struct Setting {
    name: &'static str,
    /// What it means, with its default.
    meaning: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

/// Every setting with its meaning.
const SETTINGS: [Setting; 11] = [
    Setting {
        name: "DATABASE_URL",
        meaning: "the database of the handlers, of whatever kind its scheme names, as in sqlite://app.db",
        set: |config, value| text(&mut config.database_url, value),
    },
    Setting {
        name: "INBOX_SQLITE_URL",
        meaning: "the SQLite database, in a program that also has handlers for another one",
        set: |config, value| text(&mut config.sqlite_url, value),
    },
    Setting {
        name: "INBOX_POSTGRES_URL",
        meaning: "the PostgreSQL database, in a program that also has handlers for another one",
        set: |config, value| text(&mut config.postgres_url, value),
    },
    Setting {
        name: "INBOX_BROKER_URL",
        meaning: "the broker, as in embedded:broker.db",
        set: |config, value| text(&mut config.broker_url, value),
    },
    Setting {
        name: "INBOX_GROUPS",
        meaning: "the consumer groups to run, separated by commas; all that are linked if unset",
        set: |config, value| {
            config.groups = Some(value.split(',').map(|group| group.trim().to_owned()).collect());
            Ok(())
        },
    },
    Setting {
        name: "INBOX_MIGRATE",
        meaning: "auto: the inbox's tables are made at the start (the default); check: they must be there; off",
        set: |config, value| {
            config.migrate = Some(match value {
                "auto" => Migrate::Auto,
                "check" => Migrate::Check,
                "off" => Migrate::Off,
                _ => return Err("write auto, check or off".to_owned()),
            });
            Ok(())
        },
    },
    Setting {
        name: "INBOX_ACK_WAIT",
        meaning: "how long the broker waits for a sign of life before it delivers again (30s)",
        set: |config, value| duration(&mut config.ack_wait, value),
    },
    Setting {
        name: "INBOX_LOCK_WAIT",
        meaning: "how long a claim waits for another transaction (1s)",
        set: |config, value| duration(&mut config.lock_wait, value),
    },
    Setting {
        name: "INBOX_POOL_SIZE",
        meaning: "how many connections the runtime's own pool may have (10)",
        set: |config, value| {
            let size = value.parse().ok().filter(|size| *size > 0);
            config.pool_size = Some(size.ok_or("write a number from 1 on")?);
            Ok(())
        },
    },
    Setting {
        name: "INBOX_TRANSACTION_POOLER",
        meaning: "true if a transaction-pooling proxy stands before PostgreSQL (false)",
        set: |config, value| {
            config.transaction_pooler = Some(value.parse().map_err(|_| "write true or false")?);
            Ok(())
        },
    },
    Setting {
        name: "INBOX_SHUTDOWN_TIMEOUT",
        meaning: "how long running handlers may take to finish when the program is told to stop (25s)",
        set: |config, value| duration(&mut config.shutdown_timeout, value),
    },
];

/// What was set; `None` is unset.
#[derive(Clone, Default)]
pub(crate) struct Config {
    pub(crate) database_url: Option<String>,
    pub(crate) sqlite_url: Option<String>,
    pub(crate) postgres_url: Option<String>,
    pub(crate) broker_url: Option<String>,
    pub(crate) groups: Option<Vec<String>>,
    pub(crate) migrate: Option<Migrate>,
    pub(crate) ack_wait: Option<Duration>,
    pub(crate) lock_wait: Option<Duration>,
    pub(crate) pool_size: Option<u32>,
    pub(crate) transaction_pooler: Option<bool>,
    pub(crate) shutdown_timeout: Option<Duration>,
    /// The properties of librdkafka.
    #[cfg(feature = "kafka")]
    pub(crate) kafka: std::collections::BTreeMap<String, String>,
}

/// URLs carry passwords, so they aren't shown.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").finish_non_exhaustive()
    }
}

impl Config {
    /// The environment's settings. Adds a text to `problems` for each that can't be used.
    pub(crate) fn from_env(problems: &mut Vec<String>) -> Self {
        Self::read(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
            problems,
        )
    }

    fn read(variables: impl Iterator<Item = (String, std::ffi::OsString)>, problems: &mut Vec<String>) -> Self {
        let mut config = Self::default();
        for (name, value) in variables {
            #[cfg(feature = "kafka")]
            if let Some(property) = name.strip_prefix("INBOX_KAFKA_") {
                match value.into_string() {
                    Ok(value) => config.kafka_property(property, value),
                    Err(_) => problems.push(format!("the environment variable {name}: it is not UTF-8")),
                }
                continue;
            }
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
                warn_unknown(&name);
                continue;
            };
            let set = match value.to_str() {
                // A variable that is set to nothing is how many a platform says "unset".
                Some("") => Ok(()),
                Some(value) => (setting.set)(&mut config, value.trim()),
                None => Err("it is not UTF-8".to_owned()),
            };
            if let Err(problem) = set {
                problems.push(format!(
                    "the environment variable {name} ({}): {problem}",
                    setting.meaning
                ));
            }
        }
        config
    }

    /// `SESSION_TIMEOUT_MS` is `session.timeout.ms`: no property of librdkafka has an underscore.
    #[cfg(feature = "kafka")]
    fn kafka_property(&mut self, name: &str, value: String) {
        if !value.is_empty() {
            self.kafka.insert(name.to_ascii_lowercase().replace('_', "."), value);
        }
    }
}

/// Warns only: a container platform makes variables such as `INBOX_PORT` for a service called inbox.
fn warn_unknown(name: &str) {
    if name.starts_with("INBOX_") {
        tracing::warn!(
            variable = name,
            nearest = nearest(name),
            "an unknown environment variable begins with INBOX_"
        );
    }
}

/// The known name that looks most like `name`.
fn nearest(name: &str) -> &'static str {
    SETTINGS
        .iter()
        .map(|setting| setting.name)
        .min_by_key(|known| strsim::damerau_levenshtein(known, name))
        .unwrap_or_default()
}

#[allow(clippy::unnecessary_wraps, reason = "of the shape of the other setters")]
fn text(field: &mut Option<String>, value: &str) -> Result<(), String> {
    *field = Some(value.to_owned());
    Ok(())
}

fn duration(field: &mut Option<Duration>, value: &str) -> Result<(), String> {
    match humantime::parse_duration(value) {
        Ok(duration) if duration.is_zero() => Err("it must be longer than zero".to_owned()),
        Ok(duration) => {
            *field = Some(duration);
            Ok(())
        }
        Err(error) => Err(format!(
            "`{value}` is not a duration ({error}); write one as in 30s or 500ms"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Config, Vec<String>) {
        let mut problems = Vec::new();
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).into()));
        let config = Config::read(variables, &mut problems);
        (config, problems)
    }

    #[test]
    fn settings_are_read() {
        let (config, problems) = read(&[
            ("INBOX_GROUPS", "billing, shipping"),
            ("INBOX_ACK_WAIT", "1500ms"),
            ("INBOX_MIGRATE", "check"),
            ("DATABASE_URL", "sqlite://app.db"),
            ("INBOX_BROKER_URL", ""),
            ("PATH", "/bin"),
        ]);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            config.groups.as_deref(),
            Some(&["billing".to_owned(), "shipping".to_owned()][..])
        );
        assert_eq!(config.ack_wait, Some(Duration::from_millis(1500)));
        assert_eq!(config.migrate, Some(Migrate::Check));
        assert_eq!(config.broker_url, None);
    }

    #[test]
    fn what_cannot_be_read_is_a_problem_that_says_what_to_write() {
        let (_, problems) = read(&[
            ("INBOX_ACK_WAIT", "soon"),
            ("INBOX_LOCK_WAIT", "0s"),
            ("INBOX_MIGRATE", "yes"),
        ]);
        assert_eq!(problems.len(), 3);
        assert!(
            problems[0].contains("INBOX_ACK_WAIT") && problems[0].contains("30s"),
            "{}",
            problems[0]
        );
        assert!(problems[2].contains("auto, check or off"), "{}", problems[2]);
    }

    #[test]
    fn a_misspelt_variable_has_a_nearest_one() {
        assert_eq!(nearest("INBOX_GROUP"), "INBOX_GROUPS");
        assert_eq!(nearest("INBOX_SHUTDOWN_TIMOUT"), "INBOX_SHUTDOWN_TIMEOUT");
    }
}
