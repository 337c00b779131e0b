//! Topics: what a subject is called on Kafka, and which topics a wildcard takes.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{config::Settings, events::Events, publish::Context};
use crate::broker::{BrokerError, subject};

/// How long making topics may take.
const MAKE: Duration = Duration::from_secs(5);

/// The name of the topic of a subject without wildcards.
pub(super) fn topic(prefix: &str, subject: &str) -> String {
    format!("{prefix}{subject}")
}

/// What to subscribe to: a topic, or a regular expression, which librdkafka knows by its `^`.
pub(super) fn subscription(prefix: &str, subject: &str) -> String {
    if !has_wildcard(subject) {
        return topic(prefix, subject);
    }
    // Kafka's own topics begin with two underscores, and librdkafka's expressions can't say "not".
    let internal_possible = prefix.is_empty();
    let tokens = subject.split('.').enumerate();
    let patterns = tokens.map(|(index, token)| match (token, internal_possible && index == 0) {
        ("*", true) => "(_|_?[^._][^.]*)".to_owned(),
        (">", true) => "(_|_?[^_].*)".to_owned(),
        ("*", false) => "[^.]+".to_owned(),
        (">", false) => ".+".to_owned(),
        (literal, _) => literal.to_owned(),
    });
    let patterns: Vec<String> = patterns.collect();
    format!("^{}{}$", prefix.replace('.', "\\."), patterns.join("\\."))
}

/// Whether a subject has a wildcard.
pub(super) fn has_wildcard(subject: &str) -> bool {
    subject.split('.').any(|token| matches!(token, "*" | ">"))
}

/// The subject that a topic is, and whether a pattern takes it.
pub(super) fn takes(prefix: &str, pattern: &str, topic: &str) -> bool {
    topic
        .strip_prefix(prefix)
        .is_some_and(|subject| subject::matches(pattern, subject))
}

/// Makes the topics that are wanted and missing.
pub(super) async fn make(settings: &Settings) -> Result<(), BrokerError> {
    if settings.topics.is_empty() {
        return Ok(());
    }
    let failed = |error: KafkaError| BrokerError::unavailable("could not make the topics", error);
    let context = Context(Arc::new(Events::new(settings)));
    let admin: AdminClient<Context> = settings.producer().create_with_context(context).map_err(failed)?;
    let names = settings
        .topics
        .iter()
        .map(|(name, partitions)| (topic(&settings.prefix, name), *partitions));
    let names: Vec<_> = names.collect();
    let wanted: Vec<_> = names
        .iter()
        .map(|(name, partitions)| NewTopic::new(name, *partitions, TopicReplication::Fixed(-1)))
        .collect();
    let options = AdminOptions::new()
        .request_timeout(Some(MAKE))
        .operation_timeout(Some(MAKE));
    let made = admin.create_topics(&wanted, &options).await;
    // Its end blocks.
    std::thread::spawn(move || drop(admin));
    for made in made.map_err(failed)? {
        match made {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                return Err(BrokerError::unavailable(
                    format!("could not make the topic `{topic}`"),
                    KafkaError::AdminOp(code),
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_topic() {
        assert_eq!(subscription("", "order.created"), "order.created");
        assert_eq!(subscription("staging.", "order.created"), "staging.order.created");
    }

    #[test]
    fn a_wildcard_is_an_expression() {
        assert_eq!(subscription("", "order.*"), "^order\\.[^.]+$");
        assert_eq!(subscription("", "order.>"), "^order\\..+$");
        assert_eq!(subscription("", "*.created"), "^(_|_?[^._][^.]*)\\.created$");
        assert_eq!(subscription("t.", ">"), "^t\\..+$");
    }

    #[test]
    fn a_pattern_takes_what_its_prefix_leaves() {
        assert!(takes("t.", "order.*", "t.order.created"));
        assert!(!takes("t.", "order.*", "order.created"));
        assert!(!takes("", "order.*", "order.created.late"));
    }
}
