//! Starting a group: its state and its threads.

use std::sync::Arc;

use super::{
    backoff_clock::BackoffClock,
    commit_thread,
    group::Group,
    groups::Groups,
    metadata_poll,
    options::KafkaOptions,
    poll_thread,
    subscriptions::{GROUP_PART, Subscriptions, TopicSubscription},
};
use crate::broker::BrokerError;

/// Starts a group's poll thread and commit thread, and with the first group the thread that polls metadata.
pub(super) fn start_group(
    groups: &Arc<Groups>,
    clock: &Arc<BackoffClock>,
    options: &KafkaOptions,
    group_id: &str,
    subscriptions: Vec<TopicSubscription>,
) -> Result<Arc<Group>, BrokerError> {
    let failed = |error: std::io::Error| {
        BrokerError::Invalid(format!(
            "the threads of the group `{group_id}` can't be started: {error}"
        ))
    };
    let subscriptions = Subscriptions::new(group_id.to_owned(), options.prefix.clone(), subscriptions);
    subscriptions.set_blocked(GROUP_PART, "the group is not joined yet");
    let group = Arc::new(Group::new(subscriptions, clock.clone()));
    let thread = |name: &str| std::thread::Builder::new().name(format!("kafka-{name}"));
    let committed = group.clone();
    thread("commit")
        .spawn(move || commit_thread::run(&committed))
        .map_err(failed)?;
    let (polled, options) = (group.clone(), options.on_this_runtime());
    thread("poll")
        .spawn(move || poll_thread::run(&polled, &options))
        .map_err(failed)?;
    groups.add(&group);
    if groups.metadata_poll.set(()).is_ok() {
        let groups = groups.clone();
        thread("metadata")
            .spawn(move || metadata_poll::run(&groups))
            .map_err(failed)?;
    }
    Ok(group)
}
