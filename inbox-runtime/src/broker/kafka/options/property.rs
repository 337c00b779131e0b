//! One property of librdkafka: whether its value can be used, and the error if not.

use rdkafka::{ClientConfig, error::KafkaError};

use super::super::{errors, properties};

/// The value of a property, with the variable or line that sets it; `None` if set in code.
#[derive(Clone)]
pub(super) struct Property {
    pub(super) value: String,
    pub(super) place: Option<String>,
}

impl Property {
    /// What is wrong with its value, other properties aside.
    pub(super) fn problem(&self, name: &str) -> Option<String> {
        let place = self
            .place
            .as_ref()
            .map(|place| format!("{place}: "))
            .unwrap_or_default();
        let wrong = |why: &str| {
            Some(format!(
                "{place}the Kafka property `{name}` can't be {}: {why}",
                self.shown(name)
            ))
        };
        if properties::is_reserved(name) {
            let why = properties::refusal(name, &self.value).unwrap_or_default();
            return Some(format!("{place}the Kafka property `{name}` can't be set: {why}"));
        }
        if name.starts_with("test.") || name.starts_with("ut_") {
            return wrong("it is for librdkafka's own tests; leave it out");
        }
        let native = match ClientConfig::new().set(name, &self.value).create_native_config() {
            Ok(native) => native,
            Err(error) => return Some(format!("{place}{}", self.explain(name, &error))),
        };
        // Topic properties can't be read back.
        let parsed = native.get(name).unwrap_or_else(|_| self.value.clone());
        if let Ok(number) = parsed.parse::<i64>()
            && self.value.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c))
            && self.value != parsed
        {
            let millis = humantime::parse_duration(&self.value).map(|time| time.as_millis());
            let instead = match millis {
                Ok(millis) if name.ends_with(".ms") => format!("write it in milliseconds, as in {millis}"),
                _ => format!("write a whole number; librdkafka would parse it as {number}"),
            };
            return wrong(&instead);
        }
        wrong(properties::refusal(name, &parsed)?)
    }

    /// The value as it may appear in texts.
    fn shown(&self, name: &str) -> String {
        if properties::is_public(name) {
            format!("`{}`", self.value)
        } else {
            "that".to_owned()
        }
    }

    /// librdkafka's error, without the value where that may be a secret.
    fn explain(&self, name: &str, error: &KafkaError) -> String {
        let mut text = errors::config_error(error);
        if !properties::is_public(name) && !self.value.is_empty() {
            text = text.replace(&format!("\"{}\"", self.value), "\"[redacted]\"");
        }
        match properties::nearest(name) {
            Some(nearest) if text.contains("No such configuration property") => {
                format!("{text}; the nearest is `{nearest}`")
            }
            _ => text,
        }
    }
}
