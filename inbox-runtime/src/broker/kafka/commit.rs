//! The thread that commits offsets: in batches while all is well, at once when somebody waits for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    Offset,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{
    group::{Client, Group, State, offset_of},
    hand::Part,
    offsets::list,
    partition::Partition,
    problems,
};
use crate::broker::BrokerError;

/// The time between two commits.
const INTERVAL: Duration = Duration::from_millis(100);
/// The time between a commit of a partition that failed and the next.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is looked whether those who wait for a commit still can.
const WAITERS: Duration = Duration::from_millis(500);
/// How long the broker may take to say what it has of a commit that failed for a part of it.
const ASK: Duration = Duration::from_secs(5);
/// For how long commits may fail for a reason that passes before health says so.
const PASSES: Duration = Duration::from_secs(10);

/// An offset that is to be committed.
struct Due {
    part: Part,
    epoch: u64,
    incarnation: u32,
    offset: i64,
}

/// What became of an offset.
type Outcome = Result<(), KafkaError>;

/// Commits until the group is over.
///
/// Commits block here and nowhere else: librdkafka reports those that don't block to nobody. One is under way at a time, so
/// that none can overtake another.
pub(super) fn run(group: &Group) {
    let mut not_before = Instant::now();
    while let Some((client, due)) = next(group, not_before) {
        let outcomes = commit(&client, &due);
        drop(client);
        not_before = Instant::now() + INTERVAL;
        conclude(group, &due, &outcomes);
    }
}

/// Waits for something to commit. `None` when the group is over.
fn next(group: &Group, not_before: Instant) -> Option<(Arc<Client>, Vec<Due>)> {
    let mut state = group.lock();
    loop {
        if state.over {
            return None;
        }
        state.forget_waiters();
        let now = Instant::now();
        let pause = not_before.saturating_duration_since(now);
        let is_due = state
            .partitions
            .values()
            .any(|partition| partition.progress.due_at(now).is_some());
        let ready = pause.is_zero() || state.urgent;
        let refused = state
            .partitions
            .values()
            .filter_map(|one| one.progress.not_before())
            .min();
        match (is_due, ready, refused) {
            (true, true, _) => break,
            (true, false, _) => state = wait(group, state, pause),
            (false, _, Some(until)) => state = wait(group, state, until.saturating_duration_since(now)),
            (false, _, None) if !state.waiters.is_empty() => state = wait(group, state, WAITERS),
            (false, _, None) => {
                state.urgent = false;
                state.resting = true;
                state = group.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.resting = false;
            }
        }
    }
    let client = state.client.clone()?;
    state.urgent = false;
    state.committing = true;
    let now = Instant::now();
    let due = state.partitions.iter().filter_map(|(part, partition)| {
        Some(Due {
            part: part.clone(),
            epoch: partition.epoch,
            incarnation: partition.progress.incarnation(),
            offset: partition.progress.due_at(now)?,
        })
    });
    let due = due.collect();
    Some((client, due))
}

fn wait<'a>(group: &Group, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
    let (state, _) = group
        .work
        .wait_timeout(state, time)
        .unwrap_or_else(PoisonError::into_inner);
    state
}

/// Commits, and tells for each offset what became of it: one that the broker refuses doesn't keep it from taking the others.
fn commit(client: &Client, due: &[Due]) -> Vec<Outcome> {
    let all = due.iter().map(|due| (&due.part, Offset::Offset(due.offset)));
    let committed = list(all).and_then(|offsets| client.commit(&offsets, CommitMode::Sync));
    match committed {
        Err(error) if due.len() > 1 && concerns_a_part(&error) => {
            let there = committed_now(client, due);
            let has = |due: &Due| there.get(&due.part) == Some(&due.offset);
            due.iter()
                .map(|due| if has(due) { Ok(()) } else { Err(error.clone()) })
                .collect()
        }
        result => due.iter().map(|_| result.clone()).collect(),
    }
}

/// Whether the broker answers so for one topic or partition of several. librdkafka tells the last such error as that of all.
fn concerns_a_part(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::TopicAuthorizationFailed
                | Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::UnknownPartition
                | Code::OffsetMetadataTooLarge
                | Code::InvalidCommitOffsetSize
        )
    )
}

/// What the broker has, asked topic by topic, so that one that is refused hides no other.
fn committed_now(client: &Client, due: &[Due]) -> BTreeMap<Part, i64> {
    let mut topics: BTreeMap<&str, Vec<&Due>> = BTreeMap::new();
    for due in due {
        topics.entry(&due.part.topic).or_default().push(due);
    }
    let mut there = BTreeMap::new();
    for due in topics.values() {
        let asked = list(due.iter().map(|due| (&due.part, Offset::Invalid)));
        let Ok(answer) = asked.and_then(|asked| client.committed_offsets(asked, ASK)) else {
            continue;
        };
        for element in answer.elements() {
            if let (Ok(()), Offset::Offset(offset)) = (element.error(), element.offset()) {
                there.insert(Part::new(element.topic(), element.partition()), offset);
            }
        }
    }
    there
}

/// Notes what became of a commit, and tells who waits for it. A commit that failed fails no message: its offset is
/// committed with a later one, or the partition goes to somebody who finds in the database what was done.
fn conclude(group: &Group, due: &[Due], outcomes: &[Outcome]) {
    let now = Instant::now();
    let mut state = group.lock();
    state.committing = false;
    for (due, outcome) in due.iter().zip(outcomes) {
        let Some(partition) = state.of_incarnation(&due.part, due.epoch, due.incarnation) else {
            continue;
        };
        settle(group, partition, due, outcome, now);
    }
    for line in 0..group.lines.len() {
        group.count_unconfirmed(&state, line);
    }
    let failed = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
    if let Some(error) = failed {
        report(group, error, state.closing);
    }
    let waiters = std::mem::take(&mut state.waiters);
    for waiter in waiters {
        let ours = due.iter().position(|due| {
            (&due.part, due.epoch, due.incarnation) == (&waiter.part, waiter.epoch, waiter.incarnation)
                && due.offset >= waiter.offset
        });
        let Some(ours) = ours else {
            state.waiters.push(waiter);
            continue;
        };
        let told = match &outcomes[ours] {
            Ok(()) => Ok(()),
            Err(error) => Err(BrokerError::unavailable(
                "the offset could not be committed",
                error.clone(),
            )),
        };
        // Who has gone has nothing to hear.
        let _ = waiter.tell.send(told);
    }
    drop(state);
    group.tell();
}

/// Notes what became of one offset, and says in health when it can't be committed.
fn settle(group: &Group, partition: &mut Partition, due: &Due, outcome: &Outcome, now: Instant) {
    let line = &group.lines[partition.line];
    let name = offset_of(&due.part.name());
    match outcome {
        Ok(()) => {
            let was_far_ahead = partition.is_ahead();
            partition.progress.commit(due.offset);
            line.status.clear_blocked(&name);
            if was_far_ahead {
                line.wake.notify_one();
            }
        }
        // If the topic is there again, it is another one, which must not have the offset of the old one.
        Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) => {
            partition.begin_anew();
        }
        Err(error) => {
            let since = partition.progress.refuse(now, now + RETRY);
            if is_lasting(error) || now.saturating_duration_since(since) >= PASSES {
                line.status
                    .set_blocked(name, problems::commit(&due.part.topic, &group.id, error));
            }
        }
    }
}

/// Whether somebody must do something about it.
fn is_lasting(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed)
    )
}

fn report(group: &Group, error: &KafkaError, closing: bool) {
    use RDKafkaErrorCode as Code;
    let group = &group.id;
    match error.rdkafka_error_code() {
        // The group is being divided anew, or we are out of it and join again.
        Some(Code::RebalanceInProgress | Code::IllegalGeneration | Code::UnknownMemberId | Code::StaleMemberEpoch) => {
            tracing::info!(group, %error, "offsets were not committed while the group is divided anew");
        }
        _ if closing => tracing::debug!(group, %error, "offsets were not committed at the end"),
        _ => tracing::warn!(group, %error, "offsets could not be committed; trying again"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Notify, oneshot};

    use super::{
        super::{
            config::Settings,
            consumer,
            group::{Line, Waiter},
            partition::Partition,
        },
        *,
    };
    use crate::broker::Subscription;

    /// A group with a partition of which everything up to the offset 41 is done and nothing is committed.
    fn group() -> (Arc<Group>, Vec<Due>) {
        let line = Line::new(&Subscription::new("billing", "order.created"));
        let group = Arc::new(Group::new(
            "billing".to_owned(),
            String::new(),
            vec![line],
            Arc::default(),
        ));
        let client = consumer::create(&group, &Settings::new("127.0.0.1:1"), 1).expect("a consumer");
        let part = Part::new("order.created", 0);
        let wake = Arc::new(Notify::new());
        let mut partition = Partition::new(&client, &part, 0, 1, None, wake).expect("a partition");
        partition.progress.finish(41);
        group.lock().partitions.insert(part.clone(), partition);
        let due = vec![Due {
            part,
            epoch: 1,
            incarnation: 0,
            offset: 42,
        }];
        (group, due)
    }

    /// What somebody hears who waits for the offset.
    fn told(group: &Group, due: &[Due], result: Outcome) -> Result<(), BrokerError> {
        let (tell, mut told) = oneshot::channel();
        group.lock().waiters.push(Waiter {
            part: due[0].part.clone(),
            epoch: 1,
            incarnation: 0,
            offset: 42,
            tell,
        });
        group.lock().committing = true;
        conclude(group, due, &[result]);
        told.try_recv().expect("an answer")
    }

    #[test]
    fn f64_whatever_a_commit_fails_by_it_is_made_again() {
        use RDKafkaErrorCode as Code;
        for code in [
            Code::RebalanceInProgress,
            Code::IllegalGeneration,
            Code::UnknownMemberId,
            Code::StaleMemberEpoch,
            Code::FencedMemberEpoch,
            Code::RequestTimedOut,
            Code::OperationTimedOut,
            Code::NoOffset,
            Code::NotCoordinator,
            Code::CoordinatorNotAvailable,
            Code::CoordinatorLoadInProgress,
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::GroupAuthorizationFailed,
        ] {
            let (group, due) = group();
            let error = told(&group, &due, Err(KafkaError::ConsumerCommit(code))).expect_err("not committed");
            assert!(matches!(error, BrokerError::Unavailable { .. }), "{code:?}: {error}");
            let mut state = group.lock();
            assert!(
                state.is_dirty() && !state.committing && state.fatal.is_none(),
                "{code:?}"
            );
            assert!(
                state
                    .current(&due[0].part, 1)
                    .is_some_and(|partition| !partition.is_in_hand())
            );
            drop(state);
            told(&group, &due, Ok(())).expect("committed");
            assert!(!group.lock().is_dirty(), "{code:?}");
        }
    }
}
