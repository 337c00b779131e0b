//! What is looked at every few seconds, on a thread of its own for all groups: topics that are missing, partitions without a leader,
//! how far the group has come, and what was removed before it came there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use rdkafka::{Offset, consumer::Consumer, error::KafkaError, metadata::Metadata};

use super::{
    Shared,
    group::{Client, Group, State},
    hand::Part,
    offsets, problems, topics,
};
use crate::handler::StartPosition;

/// The time between two looks at a group.
const PERIOD: Duration = Duration::from_secs(5);
/// How soon a look comes that is wanted at once.
const TICK: Duration = Duration::from_millis(500);
/// How long one question to the brokers may take.
const ASK: Duration = Duration::from_secs(2);
/// For how long what was seen holds good.
const FRESH: Duration = Duration::from_secs(15);

/// The partitions of a line's topics, each with whether it has a leader.
type Topics = BTreeMap<String, Vec<(i32, bool)>>;

/// Looks at all groups until there are none.
pub(super) fn run(shared: &Weak<Shared>) {
    while let Some(groups) = shared.upgrade().map(|shared| shared.groups()) {
        for group in &groups {
            let client = {
                let mut state = group.lock();
                let now = Instant::now();
                let is_time = state.look.is_none_or(|look| look <= now);
                if !is_time || !state.answers || state.closing {
                    continue;
                }
                state.look = Some(now + PERIOD);
                state.client.clone()
            };
            if let Some(client) = client {
                look(group, &client);
            }
        }
        for group in &groups {
            group.forget_lag(FRESH);
        }
        drop(groups);
        std::thread::sleep(TICK);
    }
}

fn look(group: &Group, client: &Client) {
    let topics = match find(group, client) {
        Ok(topics) => topics,
        Err(error) => {
            tracing::debug!(group = group.id, %error, "the brokers don't say which topics there are");
            return;
        }
    };
    for (line, topics) in topics.iter().enumerate() {
        tell_leaders(group, line, topics);
        match Place::ask(client, topics) {
            Ok(place) => take_note(group, line, topics, &place),
            Err(error) => tracing::debug!(group = group.id, %error, "the brokers don't say how far a group has come"),
        }
    }
    fetch_again(group, client);
}

/// The topics of each line. Says in their status which lines have none yet.
fn find(group: &Group, client: &Client) -> Result<Vec<Topics>, KafkaError> {
    // Of all topics where one may be missing: to ask for one makes it, where the brokers are set up so.
    let of_all = group.lock().missing || group.lines.iter().any(|line| topics::has_wildcard(&line.subject));
    let all = of_all.then(|| client.fetch_metadata(None, ASK)).transpose()?;
    let mut found = Vec::new();
    let mut any_missing = false;
    for line in &group.lines {
        let topic = topics::topic(&group.prefix, &line.subject);
        let topics = match &all {
            Some(all) => topics_in(group, &line.subject, all),
            None => topics_in(group, &line.subject, &client.fetch_metadata(Some(&topic), ASK)?),
        };
        let missing = topics.is_empty() && !topics::has_wildcard(&line.subject);
        let faults = &client.context().faults;
        if !missing {
            faults.passed(group, &line.subject);
        } else if !faults.has(&line.subject) {
            line.status
                .set_blocked(&line.subject, format!("there is no topic `{topic}`"));
        }
        any_missing |= missing;
        found.push(topics);
    }
    group.lock().missing = any_missing;
    Ok(found)
}

fn topics_in(group: &Group, subject: &str, metadata: &Metadata) -> Topics {
    let ours = metadata
        .topics()
        .iter()
        .filter(|topic| !topic.partitions().is_empty() && topics::takes(&group.prefix, subject, topic.name()));
    let partitions = |topic: &rdkafka::metadata::MetadataTopic| {
        let partitions = topic.partitions().iter();
        partitions.map(|one| (one.id(), one.leader() >= 0)).collect()
    };
    ours.map(|topic| (topic.name().to_owned(), partitions(topic))).collect()
}

/// How many partitions the topics of a group have.
pub(super) fn partitions(group: &Group, metadata: &Metadata) -> u64 {
    let topics = metadata.topics().iter();
    let ours = topics.filter(|topic| group.line_of(topic.name()).is_some());
    ours.map(|topic| topic.partitions().len() as u64).sum()
}

/// Says in the status which of our partitions have no leader.
fn tell_leaders(group: &Group, line: usize, topics: &Topics) {
    let status = &group.lines[line].status;
    let state = group.lock();
    for (topic, partitions) in topics {
        let ours = |number: i32| state.partitions.contains_key(&Part::new(topic, number));
        let without = partitions.iter().filter(|(number, leads)| !leads && ours(*number));
        let numbers: Vec<i32> = without.map(|(number, _)| *number).collect();
        if numbers.is_empty() {
            status.clear_blocked(topic);
        } else {
            status.set_blocked(topic, problems::no_leader(topic, &numbers));
        }
    }
}

/// How far a group has come on the partitions of a line, and what there is of them.
struct Place {
    committed: BTreeMap<Part, i64>,
    /// The offset of the oldest record.
    first: BTreeMap<Part, i64>,
    /// The offset behind the newest record that can be read.
    end: BTreeMap<Part, i64>,
}

impl Place {
    fn ask(client: &Client, topics: &Topics) -> Result<Self, KafkaError> {
        let mut parts = Vec::new();
        for (topic, partitions) in topics {
            let led = partitions.iter().filter(|(_, leads)| *leads);
            parts.extend(led.map(|(number, _)| Part::new(topic, *number)));
        }
        Ok(Self {
            committed: offsets::committed(client, &parts, ASK)?,
            first: offsets::find(client, &parts, Offset::Beginning, ASK)?,
            end: offsets::find(client, &parts, Offset::End, ASK)?,
        })
    }

    /// How many messages of a line are not acknowledged, by the offsets. `None` if that isn't known of every partition.
    fn lag(&self, topics: &Topics, start: StartPosition) -> Option<u64> {
        let mut lag = 0;
        for (topic, partitions) in topics {
            let parts: Vec<Part> = partitions.iter().map(|(number, _)| Part::new(topic, *number)).collect();
            let never_read = !parts.iter().any(|part| self.committed.contains_key(part));
            for part in parts {
                let (first, end) = (*self.first.get(&part)?, *self.end.get(&part)?);
                let place = match (self.committed.get(&part), start) {
                    (Some(committed), _) => *committed,
                    (None, StartPosition::First) => first,
                    (None, StartPosition::New) if !never_read => first,
                    // It is decided when somebody has the partition.
                    (None, _) => return None,
                };
                lag += u64::try_from(end - place.max(first)).unwrap_or_default();
            }
        }
        Some(lag)
    }
}

/// Notes what was found of a line: its lag, the ends of its partitions, and what was removed.
fn take_note(group: &Group, line: usize, topics: &Topics, place: &Place) {
    let one = &group.lines[line];
    let lag = place.lag(topics, one.start);
    one.set_lag(lag);
    let mut state = group.lock();
    let State { partitions, .. } = &mut *state;
    let ours = partitions.iter_mut().filter(|(_, partition)| partition.line == line);
    for (part, partition) in ours {
        let (Some(first), Some(end)) = (place.first.get(part), place.end.get(part)) else {
            continue;
        };
        let removed = partition.rest(*first, *end);
        if removed > 0 {
            tracing::warn!(
                group = group.id,
                partition = part.name(),
                removed,
                first,
                "records were removed before the group had read them; let the topic keep them for longer (`retention.ms`, \
                 `retention.bytes`)"
            );
        }
    }
    drop(state);
    group.work.notify_one();
}

/// Where records could not be fetched, librdkafka doesn't tell when they can again unless there is a new one; so it is told to
/// begin to fetch anew.
fn fetch_again(group: &Group, client: &Client) {
    let broken: BTreeSet<(Part, i64)> = {
        let state = group.lock();
        let broken = state.partitions.iter();
        broken
            .filter_map(|(part, partition)| Some((part.clone(), partition.broken_at()?)))
            .collect()
    };
    for (part, offset) in broken {
        let sought = client.seek(&part.topic, part.number, Offset::Offset(offset), Duration::ZERO);
        if let Err(error) = sought {
            tracing::debug!(partition = part.name(), %error, "a partition can't be fetched anew");
        }
    }
}

/// Begins the thread that looks.
pub(super) fn begin(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::downgrade(shared);
    let thread = std::thread::Builder::new().name("kafka-look".to_owned());
    thread.spawn(move || run(&shared)).map(drop)
}
