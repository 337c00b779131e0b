//! What librdkafka's error codes mean, and what to do about them.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::broker::BrokerError;

/// What an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorScope {
    /// Not an error, or one that is reported in another way.
    Ignored,
    /// The connection to one broker, or to all. With how much it explains: a wrong password tells more than a closed
    /// connection.
    Connection(u8),
    /// The group or its coordinator.
    Group,
    /// A topic or one of its partitions.
    Topic,
    Other,
}

/// What an error of a client concerns.
pub(super) fn scope(code: Code) -> ErrorScope {
    use Code as C;
    match code {
        C::NoError | C::PartitionEOF | C::BrokerDestroy | C::DestroyBroker | C::Fatal | C::AssignmentLost => {
            ErrorScope::Ignored
        }
        C::AllBrokersDown => ErrorScope::Connection(0),
        C::BrokerTransportFailure | C::NetworkException | C::OperationTimedOut | C::RequestTimedOut => {
            ErrorScope::Connection(1)
        }
        C::Resolve => ErrorScope::Connection(2),
        C::SSL
        | C::Authentication
        | C::SaslAuthenticationFailed
        | C::UnsupportedSASLMechanism
        | C::IllegalSASLState
        | C::SecurityDisabled => ErrorScope::Connection(3),
        C::GroupAuthorizationFailed
        | C::InconsistentGroupProtocol
        | C::InvalidGroupId
        | C::InvalidSessionTimeout
        | C::GroupMaxSizeReached
        | C::UnsupportedAssignor
        | C::UnsupportedVersion
        | C::UnreleasedInstanceId
        | C::CoordinatorNotAvailable
        | C::CoordinatorLoadInProgress
        | C::NotCoordinator
        | C::PollExceeded
        | C::ClusterAuthorizationFailed => ErrorScope::Group,
        // The metadata poll reports missing topics.
        C::UnknownTopicOrPartition | C::UnknownTopic | C::UnknownPartition => ErrorScope::Ignored,
        C::TopicAuthorizationFailed | C::InvalidTopic => ErrorScope::Topic,
        _ => ErrorScope::Other,
    }
}

/// What to do about an error, to be appended to its text. Empty if all one can do is wait.
pub(super) fn advice(code: Code, text: &str) -> &'static str {
    use Code as C;
    match code {
        C::Authentication if text.contains("OAUTHBEARER token") => {
            "; check the function of `Kafka::oauth_token(…)`, or the `sasl.oauthbearer.…` properties"
        }
        _ if text.contains("supported mechanisms") => {
            "; set INBOX_KAFKA_SASL_MECHANISM to one that the broker supports"
        }
        C::Authentication | C::SaslAuthenticationFailed => {
            "; set INBOX_KAFKA_SASL_USERNAME and INBOX_KAFKA_SASL_PASSWORD, or what else the mechanism needs, to credentials \
             that the brokers know"
        }
        C::SSL if text.contains("PLAINTEXT") => CLOSED_AT_ONCE,
        C::SSL => {
            "; set INBOX_KAFKA_SSL_CA_LOCATION to the CA certificate that signed the brokers' certificates, and use the host \
             names in those certificates as broker addresses"
        }
        _ if text.contains("security.protocol") => {
            "; set INBOX_KAFKA_SECURITY_PROTOCOL to what the brokers' listener speaks: plaintext, ssl, sasl_plaintext or sasl_ssl"
        }
        C::GroupAuthorizationFailed => {
            "; grant this user READ on the group, as `kafka-acls --operation Read --group …` does"
        }
        C::TopicAuthorizationFailed => {
            "; grant this user READ on the topic, as `kafka-acls --operation Read --topic …` does"
        }
        C::InconsistentGroupProtocol => {
            "; all members of a group must share an assignment strategy: set INBOX_KAFKA_PARTITION_ASSIGNMENT_STRATEGY to that of \
             the others (range, roundrobin or cooperative-sticky); kafkajs has its own, so give this handler another \
             group name, or stop the other members first"
        }
        C::InvalidSessionTimeout => {
            "; set INBOX_KAFKA_SESSION_TIMEOUT_MS to a value between the brokers' group.min.session.timeout.ms and \
             group.max.session.timeout.ms"
        }
        C::GroupMaxSizeReached => "; raise the brokers' group.max.size, or start fewer programs in the group",
        C::UnsupportedVersion => "; unset INBOX_KAFKA_GROUP_PROTOCOL, or update the brokers",
        C::UnsupportedAssignor => "; unset INBOX_KAFKA_GROUP_REMOTE_ASSIGNOR, or set it to one that the brokers have",
        C::UnreleasedInstanceId => {
            "; another member has this INBOX_KAFKA_GROUP_INSTANCE_ID, or had it and its session hasn't expired yet: each \
             program needs its own"
        }
        C::InvalidTopic => "; a topic's name has at most 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`",
        _ => "",
    }
}

/// The broker's text of an error, with what to do.
pub(super) fn with_advice(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(code) => format!("{code}{}", advice(code, "")),
        None => error.to_string(),
    }
}

/// What to do when every connection so far was closed by the broker.
pub(super) const CLOSED_AT_ONCE: &str = "; a listener that closes new connections at once uses another security.protocol: set \
                                         INBOX_KAFKA_SECURITY_PROTOCOL to plaintext, ssl, sasl_plaintext or sasl_ssl";

/// librdkafka's text without what varies: how long a connection had lasted, and how often the error occurred.
pub(super) fn without_details(reason: &str) -> &str {
    reason.split(" (after ").next().unwrap_or(reason).trim()
}

/// The error of publishing a message to a topic.
pub(super) fn publish_error(topic: &str, code: Code, error: KafkaError) -> BrokerError {
    use Code as C;
    let refused = |what: &str| BrokerError::refused(format!("the topic `{topic}`: {what}"), error.clone());
    let not_now = |what: &str| BrokerError::not_now(format!("the topic `{topic}`: {what}"), error.clone());
    match code {
        C::MessageSizeTooLarge | C::InvalidMessageSize | C::MessageBatchTooLarge => refused(
            "the message is larger than the topic or the producer allows; raise `max.message.bytes` of the topic, and set \
             INBOX_KAFKA_MESSAGE_MAX_BYTES",
        ),
        C::TopicAuthorizationFailed => BrokerError::denied(
            format!("the topic `{topic}`: this user may not write to it; grant WRITE on the topic"),
            error,
        ),
        C::ClusterAuthorizationFailed => not_now(
            "this user may not use an idempotent producer; grant WRITE on the topic, and to brokers before Kafka 3 \
             IDEMPOTENT_WRITE on the cluster",
        ),
        C::InvalidTopic => refused(
            "that is not a valid topic name, which has at most 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`, or it is \
             one of Kafka's internal topics",
        ),
        C::InvalidRecord => refused("the brokers refuse the message; a compacted topic, for example, needs a key"),
        C::InvalidTimestamp => {
            refused("the brokers refuse the message's timestamp; see `message.timestamp.before.max.ms` of the topic")
        }
        C::UnsupportedForMessageFormat => {
            refused("its message format is that of Kafka 0.10, which has no headers; raise it")
        }
        C::PolicyViolation => refused("a policy of the brokers rejects the message"),
        C::UnsupportedCompressionType => {
            refused("the brokers don't support this compression; set INBOX_KAFKA_COMPRESSION_TYPE to another one")
        }
        C::UnknownTopic | C::UnknownTopicOrPartition | C::UnknownTopicId | C::UnknownPartition => {
            not_now("it doesn't exist; create it first")
        }
        C::LeaderNotAvailable | C::NotLeaderForPartition | C::FencedLeaderEpoch | C::UnknownLeaderEpoch => {
            not_now("a partition has no leader, or is electing one")
        }
        C::NotEnoughReplicas | C::NotEnoughReplicasAfterAppend | C::ISRInsufficient | C::ReplicaNotAvailable => {
            not_now("fewer replicas are in sync than its `min.insync.replicas`")
        }
        C::KafkaStorageError | C::RequestTimedOut | C::ThrottlingQuotaExceeded | C::InvalidMessage => {
            not_now("the brokers could not store the message")
        }
        _ => BrokerError::unavailable(format!("could not publish to the topic `{topic}`"), error),
    }
}

/// The error of a configuration, with the feature or setting that helps. It never has the value of a property, which
/// rdkafka's own text would add.
pub(super) fn config_error(error: &KafkaError) -> String {
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
        "; add `rdkafka = { version = \"0.39\", features = [\"curl\", \"ssl\"] }` to the program's dependencies, or create the \
         tokens in code with `Kafka::oauth_token(…)`"
    } else if cfg!(feature = "kafka-ssl") {
        ""
    } else {
        "; turn on the feature `kafka-ssl` of inbox-runtime"
    };
    format!("a Kafka property can't be used: {error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g52_errors_of_publishing_are_of_three_kinds() {
        let error = |code| publish_error("orders", code, KafkaError::MessageProduction(code));
        for code in [
            Code::MessageSizeTooLarge,
            Code::MessageBatchTooLarge,
            Code::InvalidTopic,
            Code::InvalidRecord,
            Code::InvalidTimestamp,
            Code::PolicyViolation,
        ] {
            assert!(matches!(error(code), BrokerError::Refused { .. }), "{code:?}");
        }
        for code in [
            Code::ClusterAuthorizationFailed,
            Code::UnknownTopic,
            Code::UnknownTopicOrPartition,
            Code::LeaderNotAvailable,
            Code::NotLeaderForPartition,
            Code::NotEnoughReplicas,
            Code::NotEnoughReplicasAfterAppend,
            Code::KafkaStorageError,
        ] {
            assert!(matches!(error(code), BrokerError::NotNow { .. }), "{code:?}");
        }
        for code in [
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::Authentication,
            Code::SSL,
        ] {
            assert!(matches!(error(code), BrokerError::Unavailable { .. }), "{code:?}");
        }
        let denied = error(Code::TopicAuthorizationFailed);
        assert!(matches!(denied, BrokerError::Denied { .. }), "{denied:?}");
        let text = denied.to_string();
        assert!(text.contains("`orders`") && text.contains("WRITE"), "{text}");
    }

    #[test]
    fn g55_an_error_says_what_to_do() {
        for (code, reason, expected) in [
            (
                Code::Authentication,
                "Invalid username or password",
                "INBOX_KAFKA_SASL_PASSWORD",
            ),
            (
                Code::Authentication,
                "broker's supported mechanisms: PLAIN",
                "INBOX_KAFKA_SASL_MECHANISM",
            ),
            (
                Code::Authentication,
                "Failed to acquire SASL OAUTHBEARER token: no",
                "oauth_token",
            ),
            (Code::SSL, "certificate verify failed", "INBOX_KAFKA_SSL_CA_LOCATION"),
            (
                Code::BrokerTransportFailure,
                "verify that security.protocol is",
                "INBOX_KAFKA_SECURITY_PROTOCOL",
            ),
            (Code::GroupAuthorizationFailed, "", "READ on the group"),
            (Code::TopicAuthorizationFailed, "", "READ on the topic"),
            (
                Code::InconsistentGroupProtocol,
                "",
                "INBOX_KAFKA_PARTITION_ASSIGNMENT_STRATEGY",
            ),
            (Code::InvalidSessionTimeout, "", "INBOX_KAFKA_SESSION_TIMEOUT_MS"),
        ] {
            let advice = advice(code, reason);
            assert!(advice.contains(expected), "{code:?}: {advice}");
        }
        assert_eq!(
            without_details("one:9092: Connection refused (after 0ms in state CONNECT)"),
            "one:9092: Connection refused"
        );
    }
}
