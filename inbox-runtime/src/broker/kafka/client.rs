//! The librdkafka consumer of a group, and its callbacks.

use std::{
    collections::HashSet,
    error::Error as StdError,
    sync::{Arc, OnceLock},
};

use rdkafka::{
    ClientContext, Statistics, TopicPartitionList,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, ConsumerContext},
    error::KafkaError,
    types::RDKafkaRespErr,
};

use super::{group_health::GroupHealth, options::KafkaOptions, prefetch_limit};

/// The consumer of a group.
pub(super) type Client = BaseConsumer<ConsumerCallbacks>;

/// The facilities of librdkafka's log lines about topics that were recreated or deleted.
const METADATA_FACILITIES: [&str; 2] = ["METADATA", "TOPICPROP"];

/// What the group does on its consumer's callbacks. A trait, since the group's state contains the client's type.
pub(super) trait GroupEvents: Send + Sync {
    /// A log line about a topic's metadata, on a thread of librdkafka.
    fn on_metadata_log(&self, line: &str);

    /// Statistics, once a second, on the poll thread.
    fn on_statistics(&self, health: &GroupHealth, statistics: &Statistics);

    /// Partitions are assigned to this member, on the poll thread.
    fn on_assigned(&self, client: &Client, assigned: &mut TopicPartitionList);

    /// Partitions are revoked from this member, on the poll thread.
    fn on_revoked(&self, client: &Client, revoked: &TopicPartitionList);
}

/// librdkafka's callbacks of a consumer.
pub(super) struct ConsumerCallbacks {
    pub(super) health: GroupHealth,
    /// The topics that existed when the group was joined.
    pub(super) initial_topics: OnceLock<HashSet<String>>,
    group: Box<dyn GroupEvents>,
    /// Whether the user has turned on the log of metadata.
    logs_metadata: bool,
}

/// Creates the consumer of a group, with prefetch limits for that many partitions.
pub(super) fn create(
    options: &KafkaOptions,
    group_id: &str,
    partitions: u64,
    health: GroupHealth,
    group: Box<dyn GroupEvents>,
) -> Result<Arc<Client>, KafkaError> {
    let mut config = options.consumer(group_id);
    prefetch_limit::apply(&mut config, options, partitions);
    let debug = options.get("debug").unwrap_or_default();
    let logs_metadata = debug
        .split(',')
        .any(|facility| ["metadata", "topic", "all"].contains(&facility.trim()));
    if !logs_metadata {
        // The only place where librdkafka reports that a topic was recreated.
        let facilities = [debug, "metadata"].into_iter().filter(|debug| !debug.is_empty());
        config.set("debug", facilities.collect::<Vec<_>>().join(","));
    }
    config.set_log_level(RDKafkaLogLevel::Debug);
    let callbacks = ConsumerCallbacks {
        health,
        initial_topics: OnceLock::new(),
        group,
        logs_metadata,
    };
    config.create_with_context(callbacks).map(Arc::new)
}

impl ClientContext for ConsumerCallbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if METADATA_FACILITIES.contains(&facility) {
            self.group.on_metadata_log(message);
            if !self.logs_metadata {
                return;
            }
        }
        self.health.events.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.health.on_error(&error, reason);
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn StdError>> {
        self.health.events.token()
    }

    fn stats(&self, statistics: Statistics) {
        self.health.on_statistics(&statistics);
        self.group.on_statistics(&self.health, &statistics);
    }
}

impl ConsumerContext for ConsumerCallbacks {
    fn rebalance(&self, client: &Client, event: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.group.on_assigned(client, partitions),
            _ => self.group.on_revoked(client, partitions),
        }
    }
}
