//! Topics and groups: created, changed, deleted and described.

use std::time::Duration;

use rdkafka::{
    Offset, TopicPartitionList,
    admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication},
    consumer::Consumer,
    error::RDKafkaErrorCode,
    metadata::Metadata,
};

use super::{KafkaCluster, REQUEST_TIMEOUT, RoundRobin, retry};

impl KafkaCluster {
    /// Creates the topic of a subject, if it doesn't exist.
    pub async fn create_topic(&self, subject: &str, partitions: i32) {
        self.create_topic_with(subject, partitions, &[]).await;
    }

    /// The same with settings of the topic.
    pub async fn create_topic_with(&self, subject: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.create_replicated_topic(subject, partitions, 1, settings).await;
    }

    /// The same on several brokers.
    pub async fn create_replicated_topic(
        &self,
        subject: &str,
        partitions: i32,
        replicas: i32,
        settings: &[(&str, &str)],
    ) {
        let topic = format!("{}{subject}", self.prefix);
        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(replicas));
        let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
        retry(async || {
            let made = self.observer.admin.create_topics([&new], &options()).await;
            match made.as_deref() {
                Ok([Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))]) => Ok(()),
                other => Err(format!("the topic {topic}: {other:?}")),
            }
        })
        .await;
        let round_robin = RoundRobin { partitions, next: 0 };
        self.topics.lock().insert(topic, round_robin);
    }

    /// Grows the topic of a subject to that many partitions.
    pub async fn grow_topic(&self, subject: &str, partitions: i32) {
        let topic = format!("{}{subject}", self.prefix);
        let grown = self
            .observer
            .admin
            .create_partitions([&NewPartitions::new(&topic, partitions as usize)], &options())
            .await
            .expect("an answer");
        assert!(grown.iter().all(Result::is_ok), "{grown:?}");
    }

    /// The lowest number of in-sync replicas of a subject's partitions; `None` if the server doesn't answer.
    pub async fn in_sync(&self, subject: &str) -> Option<usize> {
        let metadata = self.metadata(subject).await?;
        let partitions = metadata.topics().first()?.partitions();
        partitions.iter().map(|partition| partition.isr().len()).min()
    }

    async fn metadata(&self, subject: &str) -> Option<Metadata> {
        let topic = format!("{}{subject}", self.prefix);
        let metadata = self.observe("nobody", move |client| {
            client.fetch_metadata(Some(&topic), REQUEST_TIMEOUT)
        });
        metadata.await.ok()
    }

    /// The node id of each partition's leader, of a subject's topic; `None` if the server doesn't answer.
    pub async fn leaders(&self, subject: &str) -> Option<Vec<i32>> {
        let metadata = self.metadata(subject).await?;
        let partitions = metadata.topics().first()?.partitions();
        let mut leaders: Vec<_> = partitions.iter().map(|one| (one.id(), one.leader())).collect();
        leaders.sort_unstable();
        Some(leaders.into_iter().map(|(_, leader)| leader).collect())
    }

    /// Removes the records of a partition before that offset, as retention does.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub async fn delete_records(&self, subject: &str, partition: i32, before: i64) {
        let topic = format!("{}{subject}", self.prefix);
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(&topic, partition, Offset::Offset(before))
            .expect("an offset");
        let deleted = self.observer.admin.delete_records(&offsets, &options()).await;
        deleted.expect("deleted");
    }

    /// Deletes the topic of a subject, and returns when it no longer exists.
    pub async fn delete_topic(&self, subject: &str) {
        let topic = format!("{}{subject}", self.prefix);
        let deleted = self
            .observer
            .admin
            .delete_topics(&[&topic], &options())
            .await
            .expect("an answer");
        assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        while self.in_sync(subject).await.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.topics.lock().remove(&topic);
    }

    /// Deletes a group with its offsets. Its members must have left; a busy server may notice that a moment later.
    pub async fn delete_group(&self, group: &str) {
        let id = format!("{}{group}", self.prefix);
        retry(async || {
            let deleted = self.observer.admin.delete_groups(&[&id], &options()).await;
            match deleted.as_deref() {
                Ok([Ok(_)]) => Ok(()),
                other => Err(format!("the group {id}: {other:?}")),
            }
        })
        .await;
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .operation_timeout(Some(REQUEST_TIMEOUT))
        .request_timeout(Some(REQUEST_TIMEOUT))
}
