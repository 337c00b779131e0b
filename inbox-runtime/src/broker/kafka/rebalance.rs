//! Partitions that come and go: where the group begins on one, and what is finished before one is given up.

use std::sync::{Arc, PoisonError};

use rdkafka::{
    TopicPartitionList,
    consumer::{BaseConsumer, Consumer, RebalanceProtocol},
};

use super::{
    consumer::{COMMIT, Context, JOINING},
    group::{Client, State},
    hand::Part,
    offsets::{self, Begin},
    partition::Partition,
};

impl Context {
    pub(super) fn assigned(&self, client: &BaseConsumer<Self>, assigned: &mut TopicPartitionList) {
        let begun = offsets::begin(client, &self.group, assigned, self.known.get());
        let mut state = self.group.lock();
        // Without a client the group is being left.
        if let Some(shared) = state.client.clone() {
            for element in assigned.elements() {
                let part = Part::new(element.topic(), element.partition());
                let begin = begun.get(&part).copied().unwrap_or_default();
                self.take_over(&mut state, &shared, part, begin);
            }
        }
        state.look = None;
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

    fn take_over(&self, state: &mut State, client: &Arc<Client>, part: Part, begin: Begin) {
        let Some(line) = self.group.line_of(&part.topic) else {
            return;
        };
        let wake = self.group.lines[line].wake.clone();
        let epoch = state.next_epoch();
        let Some(mut partition) = Partition::new(client, &part, line, epoch, begin.committed, wake) else {
            return;
        };
        if let Some(offset) = begin.at {
            partition.begin_at(offset);
        }
        self.faults.passed(&self.group, &self.group.lines[line].subject);
        state.begun.insert(part.topic.clone());
        state.partitions.insert(part, partition);
    }

    pub(super) fn revoked(&self, client: &BaseConsumer<Self>, revoked: &TopicPartitionList) {
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
            let any = |state: &State, what: fn(&Partition) -> bool| {
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
                self.group.lines[partition.line].forget(part);
                self.group
                    .lose(&state, partition.line, partition.progress.unconfirmed());
            }
        }
        state.forget_waiters();
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
