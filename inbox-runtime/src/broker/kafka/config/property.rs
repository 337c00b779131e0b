//! One property of librdkafka: whether its value can be used, and what is said when not.

use rdkafka::{ClientConfig, error::KafkaError};

use super::properties;

/// The value of a property of librdkafka, and where it was found, if not in code.
#[derive(Clone)]
pub(super) struct Property {
    pub(super) value: String,
    pub(super) place: Option<String>,
}

impl Property {
    /// What is wrong with it alone.
    pub(super) fn problem(&self, name: &str) -> Option<String> {
        let found = self
            .place
            .as_ref()
            .map(|place| format!("{place}: "))
            .unwrap_or_default();
        let wrong = |why: &str| {
            Some(format!(
                "{found}the Kafka property `{name}` can't be {}: {why}",
                self.shown(name)
            ))
        };
        if properties::is_reserved(name) {
            let why = properties::refusal(name, &self.value).unwrap_or_default();
            return Some(format!("{found}the Kafka property `{name}` can't be set: {why}"));
        }
        if name.starts_with("test.") || name.starts_with("ut_") {
            return wrong("it is for librdkafka's own tests; leave it out");
        }
        let native = match ClientConfig::new().set(name, &self.value).create_native_config() {
            Ok(native) => native,
            Err(error) => return Some(format!("{found}{}", self.explain(name, &error))),
        };
        // A property of topics can't be read back.
        let taken = native.get(name).unwrap_or_else(|_| self.value.clone());
        if let Ok(number) = taken.parse::<i64>()
            && self.value.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c))
            && self.value != taken
        {
            let millis = humantime::parse_duration(&self.value).map(|time| time.as_millis());
            let instead = match millis {
                Ok(millis) if name.ends_with(".ms") => format!("write it in milliseconds, as in {millis}"),
                _ => format!("write a whole number; librdkafka would take it for {number}"),
            };
            return wrong(&instead);
        }
        wrong(properties::refusal(name, &taken)?)
    }

    /// The value in texts.
    fn shown(&self, name: &str) -> String {
        if properties::may_be_shown(name) {
            format!("`{}`", self.value)
        } else {
            "that".to_owned()
        }
    }

    /// librdkafka's word on it, without the value where that may be a secret.
    fn explain(&self, name: &str, error: &KafkaError) -> String {
        let mut text = explain(error);
        if !properties::may_be_shown(name) && !self.value.is_empty() {
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

/// librdkafka's word on a configuration, with what it can't know. It never has the value of a property, which rdkafka would add.
pub(in crate::broker::kafka) fn explain(error: &KafkaError) -> String {
    let error = match error {
        KafkaError::ClientConfig(_, text, ..) | KafkaError::ClientCreation(text) => text.clone(),
        KafkaError::Nul(_) => "a value has a null character".to_owned(),
        error => error.to_string(),
    };
    let missing = ["at build time", "not supported in this build", "recompile librdkafka"];
    let hint = if !missing.iter().any(|text| error.contains(text)) {
        ""
    } else if error.contains("GSSAPI") || error.contains("cyrus") {
        "; Kerberos (GSSAPI), which is librdkafka's default mechanism, is not built in: set INBOX_KAFKA_SASL_MECHANISM to PLAIN, \
         SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, or add `rdkafka = { version = \"0.39\", features = [\"gssapi\"] }` to \
         the program's dependencies"
    } else if error.contains("curl") {
        "; add `rdkafka = { version = \"0.39\", features = [\"curl\", \"ssl\"] }` to the program's dependencies, or make the \
         tokens in code with `Kafka::oauth_token(…)`"
    } else if cfg!(feature = "kafka-ssl") {
        ""
    } else {
        "; turn on the feature `kafka-ssl` of inbox-runtime"
    };
    format!("a Kafka property can't be used: {error}{hint}")
}
