//! The thread that commits offsets: in batches at an interval, or at once when somebody waits for it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;
use rdkafka::{
    Offset,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, RDKafkaErrorCode as Code},
};

use super::{
    client::Client,
    group::{CommitWaiter, Group, GroupState},
    offsets,
    partition::Partition,
    partition_errors,
    progress::CommitProgress,
    subscriptions::offset_part,
    topic_partition::TopicPartition,
};
use crate::broker::BrokerError;

/// The time between two commits.
const INTERVAL: Duration = Duration::from_millis(100);
/// The time until a partition's failed commit is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often it is checked whether waiters still have their partition.
const WAITER_CHECK: Duration = Duration::from_millis(500);
/// The timeout of a request for committed offsets after a commit that failed in part.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long commits may fail for a transient reason before health shows it.
const TRANSIENT: Duration = Duration::from_secs(10);
/// How long a revocation, or leaving the group, waits for commits.
pub(super) const COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// An offset to commit.
struct DueOffset {
    partition: TopicPartition,
    epoch: u64,
    incarnation: u32,
    offset: i64,
}

type CommitResult = Result<(), KafkaError>;

/// Commits until the group's shutdown.
///
/// Commits block, since librdkafka doesn't report the results of those that don't. One runs at a time, so that none can
/// overtake another.
pub(super) fn run(group: &Group) {
    let mut not_before = Instant::now();
    while let Some((client, due)) = next_batch(group, not_before) {
        let results = commit(&client, &due);
        drop(client);
        not_before = Instant::now() + INTERVAL;
        record_results(group, &due, &results);
    }
}

/// Waits for offsets to commit. `None` at the group's shutdown.
fn next_batch(group: &Group, not_before: Instant) -> Option<(Arc<Client>, Vec<DueOffset>)> {
    let mut state = wait_due(group, not_before)?;
    let client = state.client.clone()?;
    state.commit_now = false;
    state.committing = true;
    let now = Instant::now();
    let due = state.partitions.iter().filter_map(|(id, partition)| {
        Some(DueOffset {
            partition: id.clone(),
            epoch: partition.epoch,
            incarnation: partition.progress.incarnation(),
            offset: partition.progress.due_at(now)?,
        })
    });
    let due = due.collect();
    Some((client, due))
}

/// Waits until an offset is due, and the interval is over or the commit is wanted at once. `None` at the group's
/// shutdown.
fn wait_due(group: &Group, not_before: Instant) -> Option<MutexGuard<'_, GroupState>> {
    let mut state = group.lock();
    loop {
        if state.shutdown {
            return None;
        }
        state.drop_stale_waiters();
        let now = Instant::now();
        let pause = not_before.saturating_duration_since(now);
        let progress = || state.partitions.values().map(|partition| &partition.progress);
        let is_due = progress().any(|progress| progress.due_at(now).is_some());
        let retry_at = progress().filter_map(CommitProgress::retry_at).min();
        match retry_at {
            _ if is_due && (pause.is_zero() || state.commit_now) => return Some(state),
            _ if is_due => wait(group, &mut state, pause),
            Some(retry_at) => wait(group, &mut state, retry_at.saturating_duration_since(now)),
            None if !state.waiters.is_empty() => wait(group, &mut state, WAITER_CHECK),
            None => {
                state.commit_now = false;
                state.commit_idle = true;
                group.commit_wanted.wait(&mut state);
                state.commit_idle = false;
            }
        }
    }
}

fn wait(group: &Group, state: &mut MutexGuard<'_, GroupState>, time: Duration) {
    group.commit_wanted.wait_for(state, time);
}

/// Commits, and returns the result of each offset: the broker may refuse one and commit the others.
fn commit(client: &Client, due: &[DueOffset]) -> Vec<CommitResult> {
    let offsets = due.iter().map(|due| (&due.partition, Offset::Offset(due.offset)));
    let result = offsets::list(offsets).and_then(|offsets| client.commit(&offsets, CommitMode::Sync));
    match result {
        Err(error) if due.len() > 1 && concerns_one_topic(&error) => {
            let committed = committed_now(client, due);
            let result = |due: &DueOffset| match committed.get(&due.partition) {
                Some(offset) if *offset == due.offset => Ok(()),
                _ => Err(error.clone()),
            };
            due.iter().map(result).collect()
        }
        result => due.iter().map(|_| result.clone()).collect(),
    }
}

/// Whether an error may concern one topic or partition of several. librdkafka returns the last such error for the whole
/// commit.
fn concerns_one_topic(error: &KafkaError) -> bool {
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

/// The committed offsets, requested topic by topic, so that the error of one doesn't hide the others.
fn committed_now(client: &Client, due: &[DueOffset]) -> BTreeMap<TopicPartition, i64> {
    let mut topics: BTreeMap<&str, Vec<&DueOffset>> = BTreeMap::new();
    for due in due {
        topics.entry(&due.partition.topic).or_default().push(due);
    }
    let mut committed = BTreeMap::new();
    for due in topics.values() {
        let request = offsets::list(due.iter().map(|due| (&due.partition, Offset::Invalid)));
        let response = request.and_then(|request| client.committed_offsets(request, REQUEST_TIMEOUT));
        let Ok(response) = response else {
            continue;
        };
        for element in response.elements() {
            if let (Ok(()), Offset::Offset(offset)) = (element.error(), element.offset()) {
                committed.insert(TopicPartition::new(element.topic(), element.partition()), offset);
            }
        }
    }
    committed
}

/// Records the results of a commit, and notifies the waiters. A failed commit fails no message: its offset is committed
/// with a later one, or the partition's next owner finds the duplicates in the database.
fn record_results(group: &Group, due: &[DueOffset], results: &[CommitResult]) {
    let now = Instant::now();
    let mut state = group.lock();
    state.committing = false;
    for (due, result) in due.iter().zip(results) {
        if let Some(partition) = state.of_incarnation(&due.partition, due.epoch, due.incarnation) {
            record_result(group, partition, due, result, now);
        }
    }
    for subscription in 0..group.subscriptions.len() {
        group.update_uncommitted(&state, subscription);
    }
    if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
        log_failure(group, error, state.closing);
    }
    let waiters = std::mem::take(&mut state.waiters);
    state.waiters = waiters
        .into_iter()
        .filter_map(|waiter| notify(waiter, due, results))
        .collect();
    drop(state);
    group.notify_settled();
}

/// Notifies a waiter if its offset was committed, or failed to be; returns it otherwise.
fn notify(waiter: CommitWaiter, due: &[DueOffset], results: &[CommitResult]) -> Option<CommitWaiter> {
    let index = due.iter().position(|due| {
        (&due.partition, due.epoch, due.incarnation) == (&waiter.partition, waiter.epoch, waiter.incarnation)
            && due.offset >= waiter.offset
    });
    let Some(index) = index else {
        return Some(waiter);
    };
    let result = results[index]
        .clone()
        .map_err(|error| BrokerError::unavailable("the offset could not be committed", error));
    // It may have stopped waiting.
    let _ = waiter.result.send(result);
    None
}

/// Records the result of one offset, in health too.
fn record_result(group: &Group, partition: &mut Partition, due: &DueOffset, result: &CommitResult, now: Instant) {
    let subscription = &group.subscriptions[partition.subscription];
    let part = offset_part(&due.partition);
    match result {
        Ok(()) => {
            let may_be_at_limit = partition.should_commit_now();
            partition.progress.record_commit(due.offset);
            subscription.clear_blocked(&part);
            if may_be_at_limit {
                subscription.wake.notify_one();
            }
        }
        // If the topic exists again, it is a new one, which must not get the offset of the old one.
        Err(error) if error.rdkafka_error_code() == Some(Code::UnknownTopicOrPartition) => {
            partition.begin_incarnation();
        }
        Err(error) => {
            let since = partition.progress.record_refusal(now, now + RETRY_DELAY);
            if needs_action(error) || now.saturating_duration_since(since) >= TRANSIENT {
                let why = partition_errors::commit_failed(&due.partition.topic, group.id(), error);
                subscription.set_blocked(part, why);
            }
        }
    }
}

/// Whether an error lasts until somebody acts.
fn needs_action(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed)
    )
}

fn log_failure(group: &Group, error: &KafkaError, closing: bool) {
    let group = group.id();
    match error.rdkafka_error_code() {
        // A rebalance, or this member was expelled and joins again.
        Some(Code::RebalanceInProgress | Code::IllegalGeneration | Code::UnknownMemberId | Code::StaleMemberEpoch) => {
            tracing::info!(group, %error, "offsets were not committed because of a rebalance");
        }
        _ if closing => tracing::debug!(group, %error, "offsets were not committed at the end"),
        _ => tracing::warn!(group, %error, "offsets could not be committed; trying again"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::{
        super::{
            options::KafkaOptions,
            poll_thread,
            subscriptions::{Subscriptions, TopicSubscription},
        },
        *,
    };
    use crate::broker::Subscription;

    /// A group with a partition of which everything up to the offset 41 is processed and nothing is committed.
    fn group() -> (Arc<Group>, Vec<DueOffset>) {
        let subscription = TopicSubscription::new(&Subscription::new("billing", "order.created"));
        let subscriptions = Subscriptions::new("billing".to_owned(), String::new(), vec![subscription]);
        let group = Arc::new(Group::new(subscriptions, Arc::default()));
        let options = KafkaOptions::new("127.0.0.1:1");
        let client = poll_thread::create_client(&group, &options, 1).expect("a consumer");
        let id = TopicPartition::new("order.created", 0);
        let subscription = (0, &group.subscriptions[0]);
        let mut partition = Partition::new(&client, id.clone(), 1, subscription, None).expect("a partition");
        partition.progress.record_ack(41);
        group.lock().partitions.insert(id.clone(), partition);
        let due = vec![DueOffset {
            partition: id,
            epoch: 1,
            incarnation: 0,
            offset: 42,
        }];
        (group, due)
    }

    /// What a waiter for the offset gets.
    fn notified(group: &Group, due: &[DueOffset], result: CommitResult) -> Result<(), BrokerError> {
        let (sender, mut receiver) = oneshot::channel();
        group.lock().waiters.push(CommitWaiter {
            partition: due[0].partition.clone(),
            epoch: 1,
            incarnation: 0,
            offset: 42,
            result: sender,
        });
        group.lock().committing = true;
        record_results(group, due, &[result]);
        receiver.try_recv().expect("a result")
    }

    #[test]
    fn f64_a_failed_commit_is_retried_whatever_the_error() {
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
            let error = notified(&group, &due, Err(KafkaError::ConsumerCommit(code))).expect_err("not committed");
            assert!(matches!(error, BrokerError::Unavailable { .. }), "{code:?}: {error}");
            let mut state = group.lock();
            assert!(
                state.has_uncommitted() && !state.committing && state.fatal.is_none(),
                "{code:?}"
            );
            assert!(
                state
                    .assigned(&due[0].partition, 1)
                    .is_some_and(|partition| !partition.is_occupied())
            );
            drop(state);
            notified(&group, &due, Ok(())).expect("committed");
            assert!(!group.lock().has_uncommitted(), "{code:?}");
        }
    }
}
