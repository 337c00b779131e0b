//! The consumer of a group: the thread that polls it, and what librdkafka tells us there.

use std::{
    collections::HashSet,
    error::Error as StdError,
    sync::{Arc, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, Message as _, Statistics, TopicPartitionList,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, RDKafkaErrorCode},
    metadata::{Metadata, MetadataTopic},
    types::RDKafkaRespErr,
};

use super::{
    events::Events,
    faults::Faults,
    group::{Client, Group},
    offsets,
    partition::{Part, Partition, Record},
    record, topics,
};
use crate::registry::StartPosition;

/// How long one poll waits. The end is noticed after that time.
const POLL: Duration = Duration::from_millis(50);
/// How often it is looked whether a topic that was missing is there.
const MISSING: Duration = Duration::from_secs(5);
/// How long it may take to find out which topics there are at the start.
const KNOWN: Duration = Duration::from_secs(3);
/// How long what is out of a partition may take to be settled when the partition goes to another member.
const DRAIN: Duration = Duration::from_secs(5);
/// How long what was acknowledged may take to be committed then, and at the end.
const COMMIT: Duration = Duration::from_secs(3);

/// The parts of a status that aren't partitions.
pub(super) const JOINING: &str = "group";
pub(super) const BROKERS: &str = "brokers";

/// What librdkafka calls from the thread that polls.
pub(super) struct Context {
    group: Arc<Group>,
    faults: Faults,
    /// How long a revoked partition may take to be drained.
    drain: Duration,
    /// The topics that were there when the group was joined, if a line begins at the newest record.
    known: OnceLock<HashSet<String>>,
}

impl Context {
    /// `longest_poll` is librdkafka's `max.poll.interval.ms`: a drain must not come near it.
    pub(super) fn new(group: Arc<Group>, events: Events, longest_poll: Option<Duration>) -> Self {
        let drain = longest_poll.map_or(DRAIN, |longest| DRAIN.min(longest / 3));
        Self {
            group,
            faults: Faults::new(events),
            drain,
            known: OnceLock::new(),
        }
    }

    fn assigned(&self, client: &BaseConsumer<Self>, assigned: &mut TopicPartitionList) {
        let begun = offsets::begin(client, &self.group, assigned, self.known.get());
        let mut state = self.group.lock();
        // Without a client the group is being left.
        if let Some(shared) = state.client.clone() {
            for element in assigned.elements() {
                let part = Part::new(element.topic(), element.partition());
                let Some(line) = self.group.line_of(&part.topic) else {
                    continue;
                };
                let wake = self.group.lines[line].wake.clone();
                let epoch = state.next_epoch();
                let Some(mut partition) = Partition::new(&shared, &part, line, epoch, wake) else {
                    continue;
                };
                if let Some(&offset) = begun.get(&part) {
                    partition.begin_at(offset);
                }
                self.faults.passed(&self.group, &self.group.lines[line].subject);
                state.partitions.insert(part, partition);
            }
        }
        drop(state);
        let result = match client.rebalance_protocol() {
            RebalanceProtocol::Cooperative => client.incremental_assign(assigned),
            _ => client.assign(assigned),
        };
        if let Err(error) = result {
            tracing::error!(group = self.group.id, %error, "partitions could not be taken over");
        }
        tracing::info!(group = self.group.id, partitions = ?names(assigned), "partitions were assigned");
        // Where it begins is to be committed.
        self.group.work.notify_one();
        self.faults.passed(&self.group, JOINING);
        self.group.joined.send_replace(true);
        self.group.wake_all();
    }

    fn revoked(&self, client: &BaseConsumer<Self>, revoked: &TopicPartitionList) {
        let lost = client.assignment_lost();
        tracing::info!(group = self.group.id, partitions = ?names(revoked), lost, "partitions were taken away");
        let parts: Vec<_> = revoked
            .elements()
            .iter()
            .map(|element| Part::new(element.topic(), element.partition()))
            .collect();
        self.drain(&parts, lost);
        let result = match client.rebalance_protocol() {
            RebalanceProtocol::Cooperative => client.incremental_unassign(revoked),
            _ => client.unassign(),
        };
        if let Err(error) = result {
            tracing::debug!(group = self.group.id, %error, "partitions could not be given up");
        }
    }

    /// Lets what runs on these partitions finish and commits it, within bounds; then they are ours no more. What is lost is
    /// somebody else's already: nothing is committed for it.
    fn drain(&self, parts: &[Part], lost: bool) {
        let mut state = self.group.lock();
        for part in parts {
            if let Some(partition) = state.partitions.get_mut(part) {
                partition.revoked = true;
            }
        }
        if !lost {
            let any = |state: &super::group::State, what: fn(&Partition) -> bool| {
                parts.iter().any(|part| state.partitions.get(part).is_some_and(what))
            };
            let settled = &self.group.settled;
            let drained = settled.wait_timeout_while(state, self.drain, |state| any(state, Partition::is_out));
            (state, _) = drained.unwrap_or_else(PoisonError::into_inner);
            state.urgent = true;
            self.group.work.notify_all();
            let committed = settled.wait_timeout_while(state, COMMIT, |state| {
                any(state, |partition| partition.progress.due().is_some())
            });
            (state, _) = committed.unwrap_or_else(PoisonError::into_inner);
        }
        for part in parts {
            if let Some(partition) = state.partitions.remove(part) {
                self.group.lines[partition.line].status.go_on(&part.name());
                self.group.lose(&state, partition.line, partition.unconfirmed());
            }
        }
        // Who waits for the offset of a partition that is gone hears that by its sender's end.
        let waiters = std::mem::take(&mut state.waiters);
        state.waiters = waiters
            .into_iter()
            .filter(|waiter| state.partitions.contains_key(&waiter.part))
            .collect();
        drop(state);
        self.group.tell();
    }
}

fn names(partitions: &TopicPartitionList) -> Vec<String> {
    let elements = partitions.elements();
    let name = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        format!("{}:{}", element.topic(), element.partition())
    };
    elements.iter().map(name).collect()
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.faults.events.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.faults.error(&self.group, &error, reason);
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn StdError>> {
        self.faults.events.token()
    }

    /// Once a second: whether the brokers answer, whether the group is joined, and how much is left.
    fn stats(&self, statistics: Statistics) {
        self.faults.statistics(&self.group, &statistics);
        if statistics
            .cgrp
            .as_ref()
            .is_some_and(|group| group.join_state == "steady")
        {
            self.faults.passed(&self.group, JOINING);
            self.group.joined.send_replace(true);
        }
        let state = self.group.lock();
        for (index, line) in self.group.lines.iter().enumerate() {
            let ours = state.partitions.iter().filter(|(_, partition)| partition.line == index);
            let lag = ours.filter_map(|(part, partition)| {
                let seen = statistics.topics.get(&*part.topic)?.partitions.get(&part.number)?;
                let end = seen.ls_offset.max(seen.hi_offset);
                match partition.progress.done() {
                    Some(done) => u64::try_from(end - done).ok(),
                    // Nothing was acknowledged since it is ours; librdkafka knows where it began.
                    None => u64::try_from(seen.consumer_lag).ok(),
                }
            });
            line.status.set_lag(Some(lag.sum()));
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

/// Makes the consumer of a group.
pub(super) fn create(config: &rdkafka::ClientConfig, context: Context) -> Result<Arc<Client>, KafkaError> {
    config.create_with_context(context).map(Arc::new)
}

/// Polls until the group is to be left, then leaves it.
pub(super) fn run(group: &Group, client: Arc<Client>) {
    let topics: Vec<String> = group
        .lines
        .iter()
        .map(|line| topics::subscription(&group.prefix, &line.subject))
        .collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    if group.lines.iter().any(|line| line.start == StartPosition::New)
        && let Ok(metadata) = client.fetch_metadata(None, KNOWN)
    {
        let _ = client
            .context()
            .known
            .set(topic_names(&metadata).map(str::to_owned).collect());
    }
    if let Err(error) = client.subscribe(&topics) {
        fail(group, &error.to_string());
    }
    let mut look = Instant::now();
    let mut missing = true;
    let mut idle_since = None;
    loop {
        match client.poll(POLL) {
            Some(Ok(record)) => stray(group, &record),
            Some(Err(error)) => missing |= trouble(group, &client, &error),
            None => {}
        }
        if missing && look <= Instant::now() && *group.joined.borrow() {
            missing = find_missing(group, &client);
            look = Instant::now() + MISSING;
        }
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

/// A record that came before its partition's own queue was there.
fn stray(group: &Group, record: &rdkafka::message::BorrowedMessage<'_>) {
    let part = Part::new(record.topic(), record.partition());
    let mut state = group.lock();
    if let Some(partition) = state.partitions.get_mut(&part) {
        partition.stray(Record {
            offset: record.offset(),
            delivery: record::delivery(record, &group.prefix),
        });
        group.lines[partition.line].wake.notify_one();
    }
}

/// What is wrong with the consumer itself. Returns whether a topic may be missing.
fn trouble(group: &Group, client: &Client, error: &KafkaError) -> bool {
    match error {
        KafkaError::MessageConsumptionFatal(_) => {
            let text = client
                .client()
                .fatal_error()
                .map_or_else(|| error.to_string(), |(code, text)| format!("{code}: {text}"));
            fail(group, &text);
            false
        }
        // Everything else was told to the context, with its text.
        _ => error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition),
    }
}

/// The client can't be used any more: every pull says so.
fn fail(group: &Group, why: &str) {
    tracing::error!(group = group.id, error = why, "the consumer of a group can't go on");
    group.lock().fatal = Some(format!("the consumer of the group `{}` can't go on: {why}", group.id));
    group.joined.send_replace(true);
    group.wake_all();
}

fn topic_names(metadata: &Metadata) -> impl Iterator<Item = &str> {
    metadata.topics().iter().map(MetadataTopic::name)
}

/// Says in their status which lines have no topic yet. Returns whether there are any.
fn find_missing(group: &Group, client: &Client) -> bool {
    // Of all topics: to ask for one makes it, where the brokers are set up so.
    let Ok(metadata) = client.fetch_metadata(None, Duration::from_secs(1)) else {
        return true;
    };
    let there: HashSet<&str> = topic_names(&metadata).collect();
    let mut missing = false;
    for line in &group.lines {
        let topic = topics::topic(&group.prefix, &line.subject);
        if topics::has_wildcard(&line.subject) || there.contains(topic.as_str()) {
            client.context().faults.passed(group, &line.subject);
        } else {
            missing = true;
            if client.context().faults.has(&line.subject) {
                continue;
            }
            line.status.wait(&line.subject, format!("there is no topic `{topic}`"));
        }
    }
    missing
}

/// Leaves the group. All of this may block for as long as the brokers are gone; nobody waits for it longer than it likes.
fn leave(group: &Group, client: Arc<Client>) {
    let mut state = group.lock();
    state.over = true;
    state.client = None;
    state.waiters.clear();
    let partitions = std::mem::take(&mut state.partitions);
    for partition in partitions.values() {
        group.lose(&state, partition.line, partition.unconfirmed());
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
