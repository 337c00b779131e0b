//! The topic names of subjects, and which topics a wildcard matches.

use crate::broker::subject;

/// The topic of a subject without wildcards.
pub(super) fn topic(prefix: &str, subject: &str) -> String {
    format!("{prefix}{subject}")
}

/// The topic to subscribe to, or a regular expression, which in librdkafka begins with `^`.
pub(super) fn topic_or_regex(prefix: &str, subject: &str) -> String {
    if !has_wildcard(subject) {
        return topic(prefix, subject);
    }
    // Internal topics, which begin with two underscores, must not match; librdkafka's expressions have no negation.
    let may_be_internal = prefix.is_empty();
    let tokens = subject.split('.').enumerate();
    let patterns = tokens.map(|(index, token)| match (token, may_be_internal && index == 0) {
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

/// Whether a topic, its prefix removed, matches a subject pattern.
pub(super) fn matches(prefix: &str, pattern: &str, topic: &str) -> bool {
    topic
        .strip_prefix(prefix)
        .is_some_and(|subject| subject::matches(pattern, subject))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_becomes_a_topic() {
        assert_eq!(topic_or_regex("", "order.created"), "order.created");
        assert_eq!(topic_or_regex("staging.", "order.created"), "staging.order.created");
    }

    #[test]
    fn a_wildcard_becomes_a_regex() {
        assert_eq!(topic_or_regex("", "order.*"), "^order\\.[^.]+$");
        assert_eq!(topic_or_regex("", "order.>"), "^order\\..+$");
        assert_eq!(topic_or_regex("", "*.created"), "^(_|_?[^._][^.]*)\\.created$");
        assert_eq!(topic_or_regex("t.", ">"), "^t\\..+$");
    }

    #[test]
    fn a_pattern_matches_without_the_prefix() {
        assert!(matches("t.", "order.*", "t.order.created"));
        assert!(!matches("t.", "order.*", "order.created"));
        assert!(!matches("", "order.*", "order.created.late"));
    }
}
