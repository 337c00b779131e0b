//! The configuration of a durable consumer: what it must be, how it differs, and where a new one starts.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::{
    durable::{Checkpoint, DurableInfo, GROUP_KEY, SUBJECT_KEY},
    error::BindError,
    stream::StreamInfo,
};
use crate::{broker::Subscription, handler::StartPosition};

/// The fields that are set whatever the server's defaults are, and updated where they differ.
fn wanted_fields(subscription: &Subscription, stream: &StreamInfo) -> [(&'static str, Value); 11] {
    [
        ("ack_wait", json!(nanos(subscription.ack_wait))),
        // The runtime counts attempts; a server that stops redelivering loses the message silently.
        ("max_deliver", json!(-1)),
        ("max_ack_pending", json!(max_ack_pending(subscription, stream))),
        // The server's back-off would override the ack-wait.
        ("backoff", json!([])),
        ("headers_only", json!(false)),
        ("max_batch", json!(0)),
        ("max_expires", json!(0)),
        ("max_bytes", json!(0)),
        ("inactive_threshold", json!(0)),
        ("rate_limit_bps", json!(0)),
        ("priority_groups", json!([])),
    ]
}

/// One for an ordered subscription, else unlimited: a message that waits for its back-off is pending too, and must not
/// keep others from being delivered.
fn max_ack_pending(subscription: &Subscription, stream: &StreamInfo) -> i64 {
    let limit = stream.config.consumer_limits.max_ack_pending;
    match subscription.ordered {
        true => 1,
        false if limit > 0 => limit,
        false => -1,
    }
}

/// In nanoseconds, at most what the server can store.
fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether a field is as wanted. The server leaves out empty values.
fn agrees(actual: Option<&Value>, wanted: &Value) -> bool {
    match actual {
        Some(actual) => actual == wanted || (is_empty(actual) && is_empty(wanted)),
        None => is_empty(wanted),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(_) => false,
    }
}

/// Fails when a field differs that the server can't change.
pub(super) fn check_unchangeable(
    subscription: &Subscription,
    stream: &StreamInfo,
    name: &str,
    info: &DurableInfo,
) -> Result<(), BindError> {
    let or_none = |text: &str| if text.is_empty() { "none" } else { text }.to_owned();
    for (field, wanted) in [
        ("ack_policy", "explicit"),
        ("replay_policy", "instant"),
        ("deliver_subject", ""),
        ("filter_subject", subscription.subject.as_str()),
    ] {
        let actual = info.text(field);
        if actual != wanted {
            return Err(BindError::Misconfigured(format!(
                "the durable {name} of the stream {} has {field} `{}`, but `{}` is wanted and the server can't change that. Use \
                 another group; or delete the durable, and the group begins anew where `start` says, so write start = \
                 \"sequence:{}\", the message after its ack floor: otherwise messages whose rows in the inbox were deleted, and \
                 those of handlers without a claim, are handled again",
                stream.config.name,
                or_none(actual),
                or_none(wanted),
                info.ack_floor.stream_seq + 1
            )));
        }
    }
    Ok(())
}

/// The configuration to update a consumer to, and a list of the changes, which is empty if there are none.
pub(super) fn updated(
    subscription: &Subscription,
    stream: &StreamInfo,
    info: &DurableInfo,
) -> (Map<String, Value>, Vec<String>) {
    let mut config = info.config.clone();
    let mut changes = Vec::new();
    for (field, wanted) in wanted_fields(subscription, stream) {
        let actual = config.get(field);
        if !agrees(actual, &wanted) {
            changes.push(format!("{field} from {} to {wanted}", actual.unwrap_or(&Value::Null)));
            config.insert(field.to_owned(), wanted);
        }
    }
    (config, changes)
}

/// The configuration of a new consumer.
pub(super) fn new(
    subscription: &Subscription,
    stream: &StreamInfo,
    name: &str,
    start: &DeliverPolicy,
) -> Map<String, Value> {
    let mut config = Map::new();
    let mut set = |field: &str, value: Value| config.insert(field.to_owned(), value);
    set("durable_name", json!(name));
    set("name", json!(name));
    set("ack_policy", json!("explicit"));
    set("replay_policy", json!("instant"));
    set("filter_subject", json!(subscription.subject));
    set(
        "metadata",
        json!({ GROUP_KEY: subscription.group, SUBJECT_KEY: subscription.subject }),
    );
    for (field, value) in wanted_fields(subscription, stream) {
        set(field, value);
    }
    set("deliver_policy", json!(start.policy));
    if let Some((field, value)) = &start.option {
        set(field, value.clone());
    }
    config
}

/// Where a new consumer starts.
#[derive(Debug, PartialEq)]
pub(super) struct DeliverPolicy {
    policy: &'static str,
    /// The field that the policy needs.
    option: Option<(&'static str, Value)>,
    /// For the log.
    pub(super) description: String,
}

impl DeliverPolicy {
    fn new(policy: &'static str, option: Option<(&'static str, Value)>, description: String) -> Self {
        Self {
            policy,
            option,
            description,
        }
    }

    fn at_sequence(sequence: u64, description: String) -> Self {
        Self::new(
            "by_start_sequence",
            Some(("opt_start_seq", json!(sequence))),
            description,
        )
    }

    /// Where the consumer of a subscription starts: after the checkpoint of the one that it replaces, or as the
    /// subscription says.
    pub(super) fn of(
        subscription: &Subscription,
        stream: &StreamInfo,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self, BindError> {
        // A work queue deletes what is acknowledged, and accepts no other policy than `all`.
        let is_queue = stream.is_work_queue();
        let start = subscription.start;
        Ok(match (checkpoint, start) {
            (Some(checkpoint), _) if !is_queue && is_valid(checkpoint, stream) => Self::at_sequence(
                checkpoint.ack_floor + 1,
                format!("after message {}, the ack floor", checkpoint.ack_floor),
            ),
            // The stream was recreated or restored: all of its messages came after the subscription.
            (Some(_), _) => Self::new("all", None, "with the first message of the new stream".to_owned()),
            (None, StartPosition::New) if !is_queue && !subscription.known => Self::new("new", None, start.to_string()),
            (None, StartPosition::Sequence(_) | StartPosition::Time(_)) if is_queue => {
                return Err(BindError::Misconfigured(format!(
                    "the stream {} has retention `workqueue`, of which every message is handled; write start = \"first\" instead \
                     of start = \"{start}\"",
                    stream.config.name
                )));
            }
            (None, StartPosition::Sequence(sequence)) => Self::at_sequence(sequence, start.to_string()),
            (None, StartPosition::Time(millis)) => {
                let option = ("opt_start_time", json!(rfc3339(millis)));
                Self::new("by_start_time", Some(option), start.to_string())
            }
            (None, _) => Self::new("all", None, StartPosition::First.to_string()),
        })
    }
}

/// Whether a checkpoint is of this stream, which wasn't recreated or restored to an earlier state.
fn is_valid(checkpoint: &Checkpoint, stream: &StreamInfo) -> bool {
    checkpoint.stream == stream.config.name
        && checkpoint.stream_created == stream.created()
        && checkpoint.ack_floor <= stream.last_seq()
}

/// Formats milliseconds since 1970.
fn rfc3339(millis: i64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_the_server_leaves_out_is_empty() {
        assert!(agrees(None, &json!([])) && agrees(None, &json!(false)) && agrees(None, &json!(0)));
        assert!(!agrees(None, &json!(-1)) && !agrees(Some(&json!(2)), &json!(-1)));
        assert!(agrees(Some(&json!(0)), &json!(0)));
    }

    #[test]
    fn a_new_consumer_starts_after_the_checkpoint_or_as_the_subscription_says() {
        let stream = |retention: &str| -> StreamInfo {
            let info = json!({
                "created": "2026-01-02T03:04:05Z", "config": { "name": "S", "retention": retention }, "state": { "last_seq": 9 },
            });
            serde_json::from_value(info).expect("an info")
        };
        let (limits, queue) = (stream("limits"), stream("workqueue"));
        let checkpoint = |ack_floor, created| Checkpoint {
            stream: "S".to_owned(),
            stream_created: created,
            ack_floor,
        };
        let policy = |start, known, stream: &StreamInfo, checkpoint: Option<Checkpoint>| {
            let subscription = Subscription::new("g", "a").start(start).known(known);
            let start = DeliverPolicy::of(&subscription, stream, checkpoint.as_ref()).ok()?;
            Some((start.policy, start.option.map(|(_, value)| value)))
        };
        let (new, sequence) = (StartPosition::New, StartPosition::Sequence(4));
        let made = limits.created();
        for (start, known, stream, checkpoint, expected) in [
            (StartPosition::First, false, &limits, None, Some(("all", None))),
            (new, false, &limits, None, Some(("new", None))),
            (new, true, &limits, None, Some(("all", None))),
            (new, false, &queue, None, Some(("all", None))),
            (
                sequence,
                false,
                &limits,
                None,
                Some(("by_start_sequence", Some(json!(4)))),
            ),
            (sequence, false, &queue, None, None),
            (
                new,
                false,
                &limits,
                Some(checkpoint(7, made)),
                Some(("by_start_sequence", Some(json!(8)))),
            ),
            (new, false, &limits, Some(checkpoint(10, made)), Some(("all", None))),
            (new, false, &limits, Some(checkpoint(7, made + 1)), Some(("all", None))),
            (new, false, &queue, Some(checkpoint(7, made)), Some(("all", None))),
        ] {
            let found = policy(start, known, stream, checkpoint.clone());
            assert_eq!(found, expected, "{start} {known} {checkpoint:?}");
        }
    }
}
