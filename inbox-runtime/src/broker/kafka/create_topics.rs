//! Creating missing topics, for `Kafka::create_topic`.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{
    client_events::{ClientEvents, ProducerCallbacks},
    options::KafkaOptions,
    topic_names,
};
use crate::broker::BrokerError;

/// How long the brokers may take to create the topics.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Creates the topics of the options that don't exist.
pub(super) async fn create_topics(options: &KafkaOptions) -> Result<(), BrokerError> {
    if options.topics.is_empty() {
        return Ok(());
    }
    let failed = |error: KafkaError| BrokerError::unavailable("could not create the topics", error);
    let callbacks = ProducerCallbacks(Arc::new(ClientEvents::new(options)));
    let admin: AdminClient<ProducerCallbacks> = options.producer().create_with_context(callbacks).map_err(failed)?;
    let names: Vec<_> = options
        .topics
        .iter()
        .map(|(subject, partitions)| (topic_names::topic(&options.prefix, subject), *partitions))
        .collect();
    let topics: Vec<_> = names
        .iter()
        .map(|(topic, partitions)| NewTopic::new(topic, *partitions, TopicReplication::Fixed(-1)))
        .collect();
    let admin_options = AdminOptions::new()
        .request_timeout(Some(TIMEOUT))
        .operation_timeout(Some(TIMEOUT));
    let results = admin.create_topics(&topics, &admin_options).await;
    // Dropping the client blocks.
    std::thread::spawn(move || drop(admin));
    for result in results.map_err(failed)? {
        match result {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                return Err(BrokerError::unavailable(
                    format!("could not create the topic `{topic}`"),
                    KafkaError::AdminOp(code),
                ));
            }
        }
    }
    Ok(())
}
