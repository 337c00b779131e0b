//! The consumer of a group: the thread that polls it, and what librdkafka tells us there.

use std::{
    collections::HashSet,
    error::Error as StdError,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, Message as _, Statistics, TopicPartitionList,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaRespErr,
};

use super::{
    anew,
    config::{self, Settings},
    events::Events,
    faults::Faults,
    group::{Client, Group},
    hand::Part,
    look, memory, record, topics,
};

/// How long one poll waits. The end is noticed after that time.
const POLL: Duration = Duration::from_millis(50);
/// How long the brokers may take to say which topics there are, until they are asked again.
const ASK: Duration = Duration::from_secs(1);
/// How long a member must have been in a group that the brokers divide to count as joined though it has no partition.
const SETTLED_MS: i64 = 2000;
/// What librdkafka calls its lines on topics that are made anew, or gone.
const METADATA: [&str; 2] = ["METADATA", "TOPICPROP"];
/// How long what is out of a partition may take to be settled when the partition goes to another member.
const DRAIN: Duration = Duration::from_secs(5);
/// How long what was acknowledged may take to be committed then, and at the end.
pub(super) const COMMIT: Duration = Duration::from_secs(3);

/// The parts of a status that aren't partitions.
pub(super) const JOINING: &str = "group";
pub(super) const BROKERS: &str = "brokers";

/// What librdkafka calls from the thread that polls.
pub(super) struct Context {
    pub(super) group: Arc<Group>,
    pub(super) faults: Faults,
    /// How long a revoked partition may take to be drained. It must not come near `max.poll.interval.ms`.
    pub(super) drain: Duration,
    /// The topics that were there when the group was joined.
    pub(super) known: OnceLock<HashSet<String>>,
    /// The brokers divide the group's partitions, by what members say at each heartbeat (`group.protocol=consumer`).
    by_heartbeat: bool,
    /// The user wants to see what is logged of metadata.
    logs_metadata: bool,
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if METADATA.contains(&facility) {
            if let Some(topic) = anew::topic(message) {
                self.group.made_anew(topic);
            }
            if let Some(topic) = anew::gone(message) {
                self.group.gone(topic);
            }
            if !self.logs_metadata {
                return;
            }
        }
        self.faults.events.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.faults.error(&self.group, &error, reason);
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn StdError>> {
        self.faults.events.token()
    }

    /// Once a second: whether the brokers answer, whether the group is joined, and which partitions librdkafka has read to their
    /// end.
    fn stats(&self, statistics: Statistics) {
        let group = &self.group;
        let answers = statistics.brokers.values().any(|broker| broker.state == "UP");
        self.faults.statistics(group, &statistics);
        if let Some(found) = &statistics.cgrp {
            if found.join_state == "steady" {
                self.faults.passed(group, JOINING);
                group.joined.send_replace(true);
            } else if self.by_heartbeat && found.state == "up" && found.stateage > SETTLED_MS {
                // A member that has no partition is never told so, nor does it leave its first state.
                self.faults.passed(group, JOINING);
            }
        }
        let mut state = group.lock();
        state.answers = answers;
        for (part, partition) in &mut state.partitions {
            let topic = statistics.topics.get(&*part.topic);
            let seen = topic.and_then(|topic| topic.partitions.get(&part.number));
            if let Some(seen) = seen.filter(|seen| seen.fetchq_cnt == 0 && seen.eof_offset >= 0) {
                partition.saw_end(seen.eof_offset);
            }
        }
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, client: &BaseConsumer<Self>, event: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assigned(client, partitions),
            _ => self.revoked(client, partitions),
        }
    }
}

/// Polls until the group is to be left, then leaves it.
pub(super) fn run(group: &Arc<Group>, settings: &Settings) {
    let Some((client, known)) = connect(group, settings) else {
        group.lock().over = true;
        group.work.notify_all();
        group.left.send_replace(true);
        return;
    };
    // It has one life.
    let _ = client.context().known.set(known);
    group.lock().client = Some(client.clone());
    let topics: Vec<String> = group
        .lines
        .iter()
        .map(|line| topics::subscription(&group.prefix, &line.subject))
        .collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    if let Err(error) = client.subscribe(&topics) {
        fail(group, &error.to_string());
    }
    let mut idle_since = None;
    loop {
        match client.poll(POLL) {
            Some(Ok(record)) => stray(group, &record),
            Some(Err(error)) => trouble(group, &client, &error),
            None => {}
        }
        anew::read_again(group, &client);
        let state = group.lock();
        if state.closing && !state.any_out() {
            let since = *idle_since.get_or_insert_with(Instant::now);
            if !state.is_dirty() || since.elapsed() > COMMIT {
                break;
            }
        }
    }
    leave(group, client);
}

/// Makes the consumer, when it is known from the brokers which topics there are: how much each partition may take of the
/// memory depends on how many there are. `None` if the group is closed before, or the consumer can't be made.
fn connect(group: &Arc<Group>, settings: &Settings) -> Option<(Arc<Client>, HashSet<String>)> {
    let mut planned = memory::FEW;
    loop {
        let client = match create(group, settings, planned) {
            Ok(client) => client,
            Err(error) => {
                fail(group, &settings.redact(&config::explain(&error)));
                return None;
            }
        };
        let metadata = loop {
            if group.lock().closing {
                return None;
            }
            hear(&client);
            match client.fetch_metadata(None, ASK) {
                Ok(metadata) => break metadata,
                Err(error) => tracing::debug!(group = group.id, %error, "the brokers don't say which topics there are"),
            }
        };
        let needed = memory::round(look::partitions(group, &metadata));
        if needed <= planned {
            let known = metadata.topics().iter().map(|topic| topic.name().to_owned());
            let known = known.collect();
            return Some((client, known));
        }
        planned = needed;
    }
}

/// Has the context told what is logged, counted and wrong. There may be hundreds of lines a second.
fn hear(client: &Client) {
    let start = Instant::now();
    while let Some(left) = POLL.checked_sub(start.elapsed()) {
        // It returns early at an error, which the context is told.
        let _ = client.poll(left);
    }
}

/// Makes the consumer of a group, which may have so many partitions.
pub(super) fn create(group: &Arc<Group>, settings: &Settings, partitions: u64) -> Result<Arc<Client>, KafkaError> {
    let mut config = settings.consumer(&group.id);
    memory::share(&mut config, settings, partitions);
    let debug = settings.get("debug").unwrap_or_default();
    let logs_metadata = debug
        .split(',')
        .any(|one| ["metadata", "topic", "all"].contains(&one.trim()));
    if !logs_metadata {
        // Only there librdkafka tells that a topic was made anew.
        let debug = [debug, "metadata"].into_iter().filter(|one| !one.is_empty());
        config.set("debug", debug.collect::<Vec<_>>().join(","));
    }
    config.set_log_level(RDKafkaLogLevel::Debug);
    let longest_poll = settings.get("max.poll.interval.ms").and_then(|text| text.parse().ok());
    let longest_poll = longest_poll.map(Duration::from_millis);
    let context = Context {
        group: group.clone(),
        faults: Faults::new(Events::new(settings)),
        drain: longest_poll.map_or(DRAIN, |longest| DRAIN.min(longest / 3)),
        known: OnceLock::new(),
        by_heartbeat: settings.get("group.protocol") == Some("consumer"),
        logs_metadata,
    };
    config.create_with_context(context).map(Arc::new)
}

/// A record that came before its partition's own queue was there.
fn stray(group: &Group, record: &rdkafka::message::BorrowedMessage<'_>) {
    let part = Part::new(record.topic(), record.partition());
    let mut state = group.lock();
    if let Some(partition) = state.partitions.get_mut(&part) {
        partition.stray(record.offset(), record::delivery(record, &group.prefix));
        group.lines[partition.line].wake.notify_one();
    }
}

/// What is wrong with the consumer itself.
fn trouble(group: &Group, client: &Client, error: &KafkaError) {
    match error {
        KafkaError::MessageConsumptionFatal(_) => {
            let text = client
                .client()
                .fatal_error()
                .map_or_else(|| error.to_string(), |(code, text)| format!("{code}: {text}"));
            fail(group, &text);
        }
        KafkaError::PartitionEOF(_) => {}
        // It is looked which topic that is.
        _ if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) => group.lock().look = None,
        // Everything else was told to the context, with its text.
        _ => {}
    }
}

/// The client can't be used any more: every pull says so.
fn fail(group: &Group, why: &str) {
    tracing::error!(group = group.id, error = why, "the consumer of a group can't go on");
    group.lock().fatal = Some(format!("the consumer of the group `{}` can't go on: {why}", group.id));
    group.joined.send_replace(true);
    group.wake_all();
}

/// Leaves the group. All of this may block for as long as the brokers are gone; nobody waits for it longer than it likes.
fn leave(group: &Group, client: Arc<Client>) {
    let mut state = group.lock();
    state.over = true;
    state.client = None;
    state.waiters.clear();
    let partitions = std::mem::take(&mut state.partitions);
    for partition in partitions.values() {
        group.lose(&state, partition.line, partition.progress.unconfirmed());
    }
    drop(state);
    // Each of them holds the client.
    drop(partitions);
    group.work.notify_all();
    let committing = group
        .settled
        .wait_timeout_while(group.lock(), COMMIT, |state| state.committing);
    drop(committing);
    // It leaves the group, with its callbacks on this thread. Once it is closed by hand, its end is an error that is logged.
    drop(client);
    group.left.send_replace(true);
}
