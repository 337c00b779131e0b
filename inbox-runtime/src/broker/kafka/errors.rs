//! What librdkafka's error codes mean: for a message that is published, for a group, for a connection; and what to do about them.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::broker::BrokerError;

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// No error: the end of a partition, a client that is being closed.
    Nothing,
    /// A connection to one broker, or to all. With how much it explains: a wrong password says more than a closed connection.
    Connection(u8),
    /// The group, or its coordinator.
    Group,
    /// A topic, or a partition of it.
    Topic,
    /// Something else.
    Other,
}

/// What an error of a client is about.
pub(super) fn about(code: Code) -> About {
    use Code as C;
    match code {
        C::NoError | C::PartitionEOF | C::BrokerDestroy | C::DestroyBroker | C::Fatal | C::AssignmentLost => {
            About::Nothing
        }
        C::AllBrokersDown => About::Connection(0),
        C::BrokerTransportFailure | C::NetworkException | C::OperationTimedOut | C::RequestTimedOut => {
            About::Connection(1)
        }
        C::Resolve => About::Connection(2),
        C::SSL
        | C::Authentication
        | C::SaslAuthenticationFailed
        | C::UnsupportedSASLMechanism
        | C::IllegalSASLState
        | C::SecurityDisabled => About::Connection(3),
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
        | C::ClusterAuthorizationFailed => About::Group,
        // That one isn't there is found in another way, and said.
        C::UnknownTopicOrPartition | C::UnknownTopic | C::UnknownPartition => About::Nothing,
        C::TopicAuthorizationFailed | C::InvalidTopic => About::Topic,
        _ => About::Other,
    }
}

/// What to do about an error, as it stands behind its text. Empty where there is nothing to do but wait.
pub(super) fn advice(code: Code, text: &str) -> &'static str {
    use Code as C;
    match code {
        C::Authentication if text.contains("OAUTHBEARER token") => {
            "; look at what the function of `Kafka::oauth_token(…)` does, or at the `sasl.oauthbearer.…` properties"
        }
        _ if text.contains("supported mechanisms") => {
            "; set INBOX_KAFKA_SASL_MECHANISM to one that the broker supports"
        }
        C::Authentication | C::SaslAuthenticationFailed => {
            "; set INBOX_KAFKA_SASL_USERNAME and INBOX_KAFKA_SASL_PASSWORD, or what else the mechanism needs, to what the brokers \
             know"
        }
        C::SSL if text.contains("PLAINTEXT") => CLOSED_AT_ONCE,
        C::SSL => {
            "; set INBOX_KAFKA_SSL_CA_LOCATION to the certificate of the authority that has signed the brokers', and the \
             brokers' addresses to the names in theirs"
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
             the others (range, roundrobin or cooperative-sticky); kafkajs has one of its own, so give this handler another \
             group name, or stop the other members first"
        }
        C::InvalidSessionTimeout => {
            "; set INBOX_KAFKA_SESSION_TIMEOUT_MS to between the brokers' group.min.session.timeout.ms and \
             group.max.session.timeout.ms"
        }
        C::GroupMaxSizeReached => "; raise the brokers' group.max.size, or start fewer programs in the group",
        C::UnsupportedVersion => "; leave out INBOX_KAFKA_GROUP_PROTOCOL, or update the brokers",
        C::UnsupportedAssignor => "; leave out INBOX_KAFKA_GROUP_REMOTE_ASSIGNOR, or write one that the brokers have",
        C::UnreleasedInstanceId => {
            "; another member has this INBOX_KAFKA_GROUP_INSTANCE_ID, or had it until its session ends: each program needs \
             its own"
        }
        C::InvalidTopic => "; a topic's name has at most 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`",
        _ => "",
    }
}

/// An error of a partition with the broker's own words, and what to do.
pub(super) fn with_advice(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(code) => format!("{code}{}", advice(code, "")),
        None => error.to_string(),
    }
}

/// What to do when a broker has closed each connection so far.
pub(super) const CLOSED_AT_ONCE: &str = "; a listener that closes new connections at once speaks another security.protocol: set \
                                         INBOX_KAFKA_SECURITY_PROTOCOL to plaintext, ssl, sasl_plaintext or sasl_ssl";

/// A reason of librdkafka's without what changes from one time to the next: how long a connection had lasted, and how often it
/// has been said.
pub(super) fn lasting(reason: &str) -> &str {
    reason.split(" (after ").next().unwrap_or(reason).trim()
}

/// The error of a message that could not be published.
pub(super) fn publishing(topic: &str, code: Code, error: KafkaError) -> BrokerError {
    use Code as C;
    let refused = |what: &str| BrokerError::refused(format!("the topic `{topic}`: {what}"), error.clone());
    let not_now = |what: &str| BrokerError::not_now(format!("the topic `{topic}`: {what}"), error.clone());
    match code {
        C::MessageSizeTooLarge | C::InvalidMessageSize | C::MessageBatchTooLarge => refused(
            "the message is larger than the topic or the producer allows; raise `max.message.bytes` of the topic, and set \
             INBOX_KAFKA_MESSAGE_MAX_BYTES",
        ),
        C::TopicAuthorizationFailed => refused("this user may not write to it; grant WRITE on the topic"),
        C::ClusterAuthorizationFailed => refused(
            "this user may not publish so that nothing is doubled; grant WRITE on the topic, and to brokers before Kafka 3 \
             IDEMPOTENT_WRITE on the cluster",
        ),
        C::InvalidTopic => refused(
            "its name is none for a topic, which has at most 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`, or it is \
             one of Kafka's own",
        ),
        C::InvalidRecord => refused("the brokers refuse the message; a compacted topic, for one, needs a key"),
        C::InvalidTimestamp => {
            refused("the brokers refuse the message's time; see `message.timestamp.before.max.ms` of the topic")
        }
        C::UnsupportedForMessageFormat => refused("its format is that of Kafka 0.10, which has no headers; raise it"),
        C::PolicyViolation => refused("a policy of the brokers forbids the message"),
        C::UnsupportedCompressionType => {
            refused("the brokers don't know this compression; set INBOX_KAFKA_COMPRESSION_TYPE to another one")
        }
        C::UnknownTopic | C::UnknownTopicOrPartition | C::UnknownTopicId | C::UnknownPartition => {
            not_now("it isn't there; make it first")
        }
        C::LeaderNotAvailable | C::NotLeaderForPartition | C::FencedLeaderEpoch | C::UnknownLeaderEpoch => {
            not_now("a partition has no leader, or is getting another one")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g52_errors_of_publishing_are_of_three_kinds() {
        let error = |code| publishing("orders", code, KafkaError::MessageProduction(code));
        for code in [
            Code::MessageSizeTooLarge,
            Code::MessageBatchTooLarge,
            Code::TopicAuthorizationFailed,
            Code::ClusterAuthorizationFailed,
            Code::InvalidTopic,
            Code::InvalidRecord,
            Code::InvalidTimestamp,
            Code::PolicyViolation,
        ] {
            assert!(matches!(error(code), BrokerError::Refused { .. }), "{code:?}");
        }
        for code in [
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
        let text = error(Code::TopicAuthorizationFailed).to_string();
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
            lasting("one:9092: Connection refused (after 0ms in state CONNECT)"),
            "one:9092: Connection refused"
        );
    }
}
