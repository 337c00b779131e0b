//! Health texts of partitions: why one can't be fetched or committed, and what to do.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::errors;

/// Why the records of a partition can't be fetched.
pub(super) fn fetch_failed(topic: &str, error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(Code::TopicAuthorizationFailed) => missing_read("topic", topic, error),
        Some(Code::UnknownTopicOrPartition) => {
            format!(
                "it no longer exists; create the topic `{topic}` again, with as many partitions as it had ({error})"
            )
        }
        _ => format!("no records can be fetched: {}", errors::with_advice(error)),
    }
}

/// Why the offset of a partition can't be committed.
pub(super) fn commit_failed(topic: &str, group: &str, error: &KafkaError) -> String {
    let why = match error.rdkafka_error_code() {
        Some(Code::TopicAuthorizationFailed) => missing_read("topic", topic, error),
        Some(Code::GroupAuthorizationFailed) => missing_read("group", group, error),
        _ => errors::with_advice(error),
    };
    format!("it can't be committed, so a restart redelivers what was processed since: {why}")
}

fn missing_read(what: &str, name: &str, error: &KafkaError) -> String {
    format!("the permission READ on the {what} `{name}` is missing; grant it ({error})")
}

/// Partitions of a topic without a leader.
pub(super) fn no_leader(topic: &str, partitions: &[i32]) -> String {
    let numbers: Vec<_> = partitions.iter().map(i32::to_string).collect();
    let (word, numbers) = match numbers.split_last() {
        Some((last, [])) => ("partition", last.clone()),
        Some((last, rest)) => ("partitions", format!("{} and {last}", rest.join(", "))),
        None => return String::new(),
    };
    format!("no leader for {word} {numbers} of the topic `{topic}`; start the brokers that host them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g36_partitions_without_a_leader_are_named() {
        assert!(no_leader("a", &[1]).starts_with("no leader for partition 1 of the topic `a`"));
        assert!(no_leader("a", &[1, 3]).starts_with("no leader for partitions 1 and 3 of"));
        assert!(no_leader("a", &[1, 3, 5]).starts_with("no leader for partitions 1, 3 and 5 of"));
    }

    #[test]
    fn g14_a_missing_permission_is_named() {
        let error = KafkaError::ConsumerCommit(Code::TopicAuthorizationFailed);
        let text = commit_failed("orders", "billing", &error);
        assert!(
            text.contains("READ on the topic `orders`") && text.contains("grant it"),
            "{text}"
        );
        let error = KafkaError::ConsumerCommit(Code::GroupAuthorizationFailed);
        assert!(commit_failed("orders", "billing", &error).contains("READ on the group `billing`"));
        let error = KafkaError::MessageConsumption(Code::TopicAuthorizationFailed);
        assert!(fetch_failed("orders", &error).contains("READ on the topic `orders`"));
    }
}
