//! Rebalances: taking over assigned partitions, and draining revoked ones.

use std::{sync::Arc, time::Duration};

use parking_lot::MutexGuard;
use rdkafka::{
    TopicPartitionList,
    consumer::{Consumer, RebalanceProtocol},
};

use super::{
    client::Client,
    commit_thread::COMMIT_TIMEOUT,
    group::{Group, GroupState},
    partition::Partition,
    start_offsets::{self, StartOffset},
    subscriptions::GROUP_PART,
    topic_partition::TopicPartition,
};

/// Takes over the partitions that were assigned to this member.
pub(super) fn assign(group: &Group, client: &Client, assigned: &mut TopicPartitionList) {
    let health = &client.context().health;
    let starts = start_offsets::decide(client, group, assigned, client.context().initial_topics.get());
    let mut state = group.lock();
    // `None` while the group is being left.
    if let Some(shared) = state.client.clone() {
        for id in ids(assigned) {
            let start = starts.get(&id).copied().unwrap_or_default();
            add_partition(group, &mut state, &shared, id, start);
        }
    }
    state.next_metadata_poll = None;
    drop(state);
    let result = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_assign(assigned),
        _ => client.assign(assigned),
    };
    if let Err(error) = result {
        tracing::error!(group = group.id(), %error, "the assigned partitions could not be taken over");
    }
    tracing::info!(group = group.id(), partitions = ?names(assigned), "partitions were assigned");
    // The start offsets are to be committed.
    group.commit_wanted.notify_one();
    health.clear(GROUP_PART);
    group.joined.send_replace(true);
    group.subscriptions.wake_all();
}

fn add_partition(group: &Group, state: &mut GroupState, client: &Arc<Client>, id: TopicPartition, start: StartOffset) {
    let Some((index, subscription)) = group.subscriptions.find(&id.topic) else {
        return;
    };
    let epoch = state.next_epoch();
    let partition = Partition::new(client, id.clone(), epoch, (index, subscription), start.committed);
    let Some(mut partition) = partition else {
        return;
    };
    if let Some(offset) = start.start_at {
        partition.start_at(offset);
    }
    client.context().health.clear(&subscription.subject);
    state.known_topics.insert(id.topic.clone());
    state.partitions.insert(id, partition);
}

/// Gives up the partitions that were revoked from this member.
pub(super) fn revoke(group: &Group, client: &Client, revoked: &TopicPartitionList, drain_timeout: Duration) {
    let lost = client.assignment_lost();
    tracing::info!(group = group.id(), partitions = ?names(revoked), lost, "partitions were revoked");
    let ids: Vec<_> = ids(revoked).collect();
    let mut state = group.lock();
    for id in &ids {
        if let Some(partition) = state.partitions.get_mut(id) {
            partition.revoked = true;
        }
    }
    // Lost partitions have another owner already: nothing can be committed for them.
    if !lost {
        state = drain(group, state, &ids, drain_timeout);
    }
    remove(group, state, &ids);
    let result = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_unassign(revoked),
        _ => client.unassign(),
    };
    if let Err(error) = result {
        tracing::debug!(group = group.id(), %error, "the revoked partitions could not be unassigned");
    }
}

/// Waits until the partitions' deliveries are settled, then until their offsets are committed, each within a limit.
fn drain<'a>(
    group: &Group,
    mut state: MutexGuard<'a, GroupState>,
    ids: &[TopicPartition],
    timeout: Duration,
) -> MutexGuard<'a, GroupState> {
    let any =
        |state: &GroupState, is: fn(&Partition) -> bool| ids.iter().any(|id| state.partitions.get(id).is_some_and(is));
    let is_in_flight = |state: &mut GroupState| any(state, Partition::is_in_flight);
    group.settled.wait_while_for(&mut state, is_in_flight, timeout);
    state.commit_now = true;
    group.commit_wanted.notify_all();
    let is_uncommitted = |state: &mut GroupState| any(state, |partition| partition.progress.uncommitted().is_some());
    group.settled.wait_while_for(&mut state, is_uncommitted, COMMIT_TIMEOUT);
    state
}

fn remove(group: &Group, mut state: MutexGuard<'_, GroupState>, ids: &[TopicPartition]) {
    for id in ids {
        if let Some(partition) = state.partitions.remove(id) {
            group.subscriptions[partition.subscription].clear_partition(id);
            group.abandon_acks(&state, partition.subscription, partition.progress.unconfirmed());
        }
    }
    state.drop_stale_waiters();
    drop(state);
    group.notify_settled();
}

fn ids(partitions: &TopicPartitionList) -> impl Iterator<Item = TopicPartition> {
    let elements = partitions.elements();
    elements
        .into_iter()
        .map(|element| TopicPartition::new(element.topic(), element.partition()))
}

fn names(partitions: &TopicPartitionList) -> Vec<String> {
    ids(partitions).map(|id| id.to_string()).collect()
}
