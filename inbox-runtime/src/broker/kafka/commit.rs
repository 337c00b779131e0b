//! The thread that commits offsets: in batches while all is well, at once when somebody waits for it.

use std::{
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{
    group::{Client, Group, State},
    partition::Part,
};
use crate::broker::BrokerError;

/// The time between two commits.
const INTERVAL: Duration = Duration::from_millis(100);
/// The time between a commit that failed and the next.
const RETRY: Duration = Duration::from_secs(1);

/// An offset that is to be committed.
struct Due {
    part: Part,
    epoch: u64,
    offset: i64,
}

/// Commits until the group is over.
///
/// Commits block here and nowhere else: librdkafka reports those that don't block to nobody. One is under way at a time, so
/// that none can overtake another.
pub(super) fn run(group: &Group) {
    let mut not_before = Instant::now();
    while let Some((client, due)) = next(group, not_before) {
        let result = commit(&client, &due);
        drop(client);
        let pause = if result.is_ok() { INTERVAL } else { RETRY };
        not_before = Instant::now() + pause;
        conclude(group, &due, &result);
    }
}

/// Waits for something to commit. `None` when the group is over.
fn next(group: &Group, not_before: Instant) -> Option<(Arc<Client>, Vec<Due>)> {
    let mut state = group.lock();
    loop {
        if state.over {
            return None;
        }
        let failed = not_before.saturating_duration_since(Instant::now());
        let ready = failed.is_zero() || (state.urgent && failed <= INTERVAL);
        match (state.is_dirty(), ready) {
            (true, true) => break,
            (true, false) => state = wait(group, state, failed),
            (false, _) => {
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
    let partitions = state.partitions.iter();
    let due = partitions.filter_map(|(part, partition)| {
        Some(Due {
            part: part.clone(),
            epoch: partition.epoch,
            offset: partition.progress.due()?,
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

fn commit(client: &Client, due: &[Due]) -> Result<(), KafkaError> {
    let mut offsets = TopicPartitionList::with_capacity(due.len());
    for due in due {
        offsets.add_partition_offset(&due.part.topic, due.part.number, Offset::Offset(due.offset))?;
    }
    client.commit(&offsets, CommitMode::Sync)
}

/// Notes what became of a commit, and tells who waits for it. A commit that failed fails no message: its offset is
/// committed with the next one, or the partition goes to somebody who finds in the database what was done.
fn conclude(group: &Group, due: &[Due], result: &Result<(), KafkaError>) {
    let mut state = group.lock();
    state.committing = false;
    match result {
        Ok(()) => {
            for due in due {
                if let Some(partition) = state.current(&due.part, due.epoch) {
                    partition.commit(due.offset);
                }
            }
            for line in 0..group.lines.len() {
                group.count_unconfirmed(&state, line);
            }
        }
        Err(error) => report(group, error, state.closing),
    }
    let waiters = std::mem::take(&mut state.waiters);
    for waiter in waiters {
        let ours = due
            .iter()
            .any(|due| due.part == waiter.part && due.epoch == waiter.epoch && due.offset >= waiter.offset);
        if !ours {
            state.waiters.push(waiter);
            continue;
        }
        let told = match result {
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
    use rdkafka::ClientConfig;
    use tokio::sync::{Notify, oneshot};

    use super::{
        super::{
            config::Settings,
            consumer::{self, Context},
            events::Events,
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
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", "127.0.0.1:1")
            .set("group.id", "billing");
        let client = consumer::create(
            &config,
            Context::new(group.clone(), Events::new(&Settings::default()), None),
        )
        .expect("a consumer");
        let part = Part::new("order.created", 0);
        let wake = Arc::new(Notify::new());
        let mut partition = Partition::new(&client, &part, 0, 1, wake).expect("a partition");
        partition.done(41);
        group.lock().partitions.insert(part.clone(), partition);
        let due = vec![Due {
            part,
            epoch: 1,
            offset: 42,
        }];
        (group, due)
    }

    /// What somebody hears who waits for the offset.
    fn told(group: &Group, due: &[Due], result: &Result<(), KafkaError>) -> Result<(), BrokerError> {
        let (tell, mut told) = oneshot::channel();
        group.lock().waiters.push(Waiter {
            part: due[0].part.clone(),
            epoch: 1,
            offset: 42,
            tell,
        });
        group.lock().committing = true;
        conclude(group, due, result);
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
            let error = told(&group, &due, &Err(KafkaError::ConsumerCommit(code))).expect_err("not committed");
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
            told(&group, &due, &Ok(())).expect("committed");
            assert!(!group.lock().is_dirty(), "{code:?}");
        }
    }
}
