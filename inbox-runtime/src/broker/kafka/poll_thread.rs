//! The thread that polls a group's consumer, which keeps its membership and runs its callbacks.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    Message as _,
    consumer::Consumer,
    error::{KafkaError, RDKafkaErrorCode},
    message::BorrowedMessage,
    metadata::Metadata,
};

use super::{
    callbacks::GroupCallbacks,
    client::{self, Client},
    client_events::ClientEvents,
    commit_thread::COMMIT_TIMEOUT,
    errors,
    group::Group,
    group_health::GroupHealth,
    options::KafkaOptions,
    prefetch_limit, record, recreated, topic_names,
    topic_partition::TopicPartition,
};

/// How long one poll blocks if nothing happens; a shutdown is noticed after that.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);
/// The timeout of a metadata request, which is repeated until the brokers answer.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// Joins the group, polls until it is closed and settled, and leaves it.
pub(super) fn run(group: &Arc<Group>, options: &KafkaOptions) {
    let Some((client, topics)) = connect(group, options) else {
        group.lock().shutdown = true;
        group.commit_wanted.notify_all();
        group.left.send_replace(true);
        return;
    };
    // Not set before: the client is new.
    let _ = client.context().initial_topics.set(topics);
    group.lock().client = Some(client.clone());
    subscribe(group, &client);
    poll(group, &client);
    leave(group, client);
}

fn subscribe(group: &Group, client: &Client) {
    let subscriptions = &group.subscriptions;
    let topics: Vec<String> = subscriptions
        .iter()
        .map(|subscription| topic_names::topic_or_regex(&subscriptions.prefix, &subscription.subject))
        .collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    if let Err(error) = client.subscribe(&topics) {
        fail(group, &error.to_string());
    }
}

/// Polls until the group is closing, nothing is in flight, and everything is committed or that takes too long.
fn poll(group: &Group, client: &Client) {
    let mut idle_since = None;
    loop {
        match client.poll(POLL_TIMEOUT) {
            Some(Ok(record)) => requeue(group, &record),
            Some(Err(error)) => poll_failed(group, client, &error),
            None => {}
        }
        recreated::seek_recreated(group, client);
        let state = group.lock();
        if state.closing && !state.any_in_flight() {
            let since = *idle_since.get_or_insert_with(Instant::now);
            if !state.has_uncommitted() || since.elapsed() > COMMIT_TIMEOUT {
                break;
            }
        }
    }
}

/// Creates the consumer and waits until the brokers answer which topics exist; their number of partitions decides on
/// the prefetch limit of each. `None` if the group is closed before, or the consumer can't be created.
fn connect(group: &Arc<Group>, options: &KafkaOptions) -> Option<(Arc<Client>, HashSet<String>)> {
    let mut planned = prefetch_limit::FEW_PARTITIONS;
    loop {
        let client = match create_client(group, options, planned) {
            Ok(client) => client,
            Err(error) => {
                fail(group, &options.redact(&errors::config_error(&error)));
                return None;
            }
        };
        let metadata = loop {
            if group.lock().closing {
                return None;
            }
            serve_callbacks(&client);
            match client.fetch_metadata(None, METADATA_TIMEOUT) {
                Ok(metadata) => break metadata,
                Err(error) => tracing::debug!(group = group.id(), %error, "the brokers return no metadata"),
            }
        };
        let needed = prefetch_limit::plan(partition_count(group, &metadata));
        if needed <= planned {
            let topics = metadata.topics().iter().map(|topic| topic.name().to_owned());
            let topics = topics.collect();
            return Some((client, topics));
        }
        planned = needed;
    }
}

/// Creates the consumer of a group, with prefetch limits for that many partitions.
pub(super) fn create_client(
    group: &Arc<Group>,
    options: &KafkaOptions,
    partitions: u64,
) -> Result<Arc<Client>, KafkaError> {
    let health = GroupHealth::new(ClientEvents::new(options), group.subscriptions.clone());
    let callbacks = Box::new(GroupCallbacks::new(group.clone(), options));
    client::create(options, group.id(), partitions, health, callbacks)
}

/// The number of partitions of the group's topics.
fn partition_count(group: &Group, metadata: &Metadata) -> u64 {
    let topics = metadata.topics().iter();
    let topics = topics.filter(|topic| group.subscriptions.find(topic.name()).is_some());
    topics.map(|topic| topic.partitions().len() as u64).sum()
}

/// Serves the client's log, error and statistics callbacks, of which there may be hundreds a second.
fn serve_callbacks(client: &Client) {
    let start = Instant::now();
    while let Some(left) = POLL_TIMEOUT.checked_sub(start.elapsed()) {
        // Returns early after an error, which the callback gets too.
        let _ = client.poll(left);
    }
}

/// Hands a record to its partition that was polled before the partition had a queue of its own.
fn requeue(group: &Group, record: &BorrowedMessage<'_>) {
    let id = TopicPartition::new(record.topic(), record.partition());
    let mut state = group.lock();
    if let Some(partition) = state.partitions.get_mut(&id) {
        let delivery = record::delivery(record, &group.subscriptions.prefix);
        partition.requeue_polled(record.offset(), delivery);
        group.subscriptions[partition.subscription].wake.notify_one();
    }
}

fn poll_failed(group: &Group, client: &Client, error: &KafkaError) {
    match error {
        KafkaError::MessageConsumptionFatal(_) => {
            let text = client
                .client()
                .fatal_error()
                .map_or_else(|| error.to_string(), |(code, text)| format!("{code}: {text}"));
            fail(group, &text);
        }
        KafkaError::PartitionEOF(_) => {}
        // The metadata poll finds out which topic it is.
        _ if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) => {
            group.lock().next_metadata_poll = None;
        }
        // The error callback gets everything else, with its text.
        _ => {}
    }
}

/// The client can't be used any more: every pull returns that.
fn fail(group: &Group, why: &str) {
    tracing::error!(group = group.id(), error = why, "the consumer of a group can't go on");
    group.lock().fatal = Some(format!("the consumer of the group `{}` can't go on: {why}", group.id()));
    group.joined.send_replace(true);
    group.subscriptions.wake_all();
}

/// Leaves the group. May block while the brokers are unreachable; others wait for it with a timeout.
fn leave(group: &Group, client: Arc<Client>) {
    let mut state = group.lock();
    state.shutdown = true;
    state.client = None;
    state.waiters.clear();
    let partitions = std::mem::take(&mut state.partitions);
    for partition in partitions.values() {
        group.abandon_acks(&state, partition.subscription, partition.progress.unconfirmed());
    }
    drop(state);
    // Their queues hold the client.
    drop(partitions);
    group.commit_wanted.notify_all();
    let mut state = group.lock();
    group
        .settled
        .wait_while_for(&mut state, |state| state.committing, COMMIT_TIMEOUT);
    drop(state);
    // Dropping it leaves the group, with its callbacks on this thread. An explicit close would make the drop log an
    // error.
    drop(client);
    group.left.send_replace(true);
}
