//! The settings of a durable: what they must be, correcting one that has others, making a new one.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::{
    durable::{DurableInfo, GROUP_KEY, Known, OpenError, SUBJECT_KEY},
    link::{Link, Unanswered},
    stream::StreamInfo,
};
use crate::{broker::Subscription, handler::StartPosition};

/// What a durable of ours has, whatever its server says by default.
fn fixed(wish: &Subscription, stream: &StreamInfo) -> [(&'static str, Value); 11] {
    [
        ("ack_wait", json!(nanos(wish.ack_wait))),
        // Attempts are counted by the runtime; a server that gives up loses a message silently.
        ("max_deliver", json!(-1)),
        ("max_ack_pending", json!(max_ack_pending(wish, stream))),
        // A back-off on the server overrides the ack-wait.
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

/// How many deliveries may be out: with strict order one, else as many as anybody asks for. A message that waits for its
/// back-off is out too, and must not keep others from being delivered.
fn max_ack_pending(wish: &Subscription, stream: &StreamInfo) -> i64 {
    let most = stream.config.consumer_limits.max_ack_pending;
    match wish.ordered {
        true => 1,
        false if most > 0 => most,
        false => -1,
    }
}

/// In nanoseconds; at most what the server can keep.
fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether a setting is as it is wanted; what is missing is what the server has by default.
fn agrees(actual: Option<&Value>, wanted: &Value) -> bool {
    match actual {
        Some(actual) => actual == wanted || (is_nothing(actual) && is_nothing(wanted)),
        None => is_nothing(wanted),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(_) => false,
    }
}

/// Applies what differs, or says why that can't be.
pub(super) async fn adjust(
    link: &Link,
    wish: &Subscription,
    stream: &StreamInfo,
    name: &str,
    info: DurableInfo,
) -> Result<DurableInfo, OpenError> {
    let refused = |field: &str, wanted: &str, actual: &str| {
        OpenError::Wrong(format!(
            "the durable {name} of the stream {} has {field} `{actual}`, but `{wanted}` is wanted and the server can't \
             change that. Use another group; or delete the durable, and the group begins anew where `start` says, so write \
             start = \"sequence:{}\", behind the last message up to which it has acknowledged all: otherwise messages whose \
             rows in the inbox are gone, and those of handlers without a claim, are handled again",
            stream.config.name,
            info.ack_floor.stream_seq + 1
        ))
    };
    for (field, wanted) in [
        ("ack_policy", "explicit"),
        ("replay_policy", "instant"),
        ("deliver_subject", ""),
        ("filter_subject", wish.subject.as_str()),
    ] {
        if info.text(field) != wanted {
            let actual = if info.text(field).is_empty() {
                "none"
            } else {
                info.text(field)
            };
            return Err(refused(field, if wanted.is_empty() { "none" } else { wanted }, actual));
        }
    }
    let mut config = info.config.clone();
    let mut changed = Vec::new();
    for (field, wanted) in fixed(wish, stream) {
        let actual = config.get(field);
        if !agrees(actual, &wanted) {
            changed.push(format!("{field} from {} to {wanted}", actual.unwrap_or(&Value::Null)));
            config.insert(field.to_owned(), wanted);
        }
    }
    warn_of_cap(wish, stream);
    if changed.is_empty() {
        return Ok(info);
    }
    let body = json!({ "stream_name": stream.config.name, "config": config, "action": "update" });
    let question = format!("CONSUMER.CREATE.{}.{name}", stream.config.name);
    let updated: Result<DurableInfo, _> = link.api(&question, &body).await;
    match updated {
        Ok(updated) => {
            tracing::warn!(
                durable = name,
                changed = changed.join(", "),
                "the settings of a durable were changed"
            );
            Ok(updated)
        }
        Err(Unanswered::Refused(refusal)) if refusal.code < 500 => Err(OpenError::Wrong(format!(
            "the durable {name} of the stream {} is not as it must be, and the server doesn't change {}: {refusal}",
            stream.config.name,
            changed.join(", ")
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Says when the stream lets fewer deliveries out than could be handled.
fn warn_of_cap(wish: &Subscription, stream: &StreamInfo) {
    let most = stream.config.consumer_limits.max_ack_pending;
    if !wish.ordered && most > 0 && most.unsigned_abs() < wish.max_in_flight as u64 {
        tracing::warn!(
            stream = stream.config.name,
            most,
            wanted = wish.max_in_flight,
            "the stream lets fewer messages be in flight than the handler could take"
        );
    }
}

/// Makes the durable.
pub(super) async fn make(
    link: &Link,
    wish: &Subscription,
    stream: &StreamInfo,
    name: &str,
    known: Option<&Known>,
) -> Result<DurableInfo, OpenError> {
    let mut config = Map::new();
    config.insert("durable_name".to_owned(), json!(name));
    config.insert("name".to_owned(), json!(name));
    config.insert("ack_policy".to_owned(), json!("explicit"));
    config.insert("replay_policy".to_owned(), json!("instant"));
    config.insert("filter_subject".to_owned(), json!(wish.subject));
    config.insert(
        "metadata".to_owned(),
        json!({ GROUP_KEY: wish.group, SUBJECT_KEY: wish.subject }),
    );
    config.extend(fixed(wish, stream).map(|(field, value)| (field.to_owned(), value)));
    let start = begin(&mut config, wish, stream, known)?;
    let body = json!({ "stream_name": stream.config.name, "config": config, "action": "create" });
    let question = format!("CONSUMER.CREATE.{}.{name}", stream.config.name);
    match link.api(&question, &body).await {
        Ok(info) => {
            warn_of_lost_place(wish, stream, known);
            warn_of_cap(wish, stream);
            let stream = &stream.config.name;
            tracing::info!(
                group = wish.group,
                subject = wish.subject,
                stream,
                start,
                "a new durable consumer begins"
            );
            Ok(info)
        }
        // Somebody else made it at the same moment, with another beginning.
        Err(Unanswered::Refused(refusal)) if refusal.error == CONSUMER_EXISTS => Err(OpenError::NotYet(
            "the durable was made by somebody else just now".to_owned(),
        )),
        Err(Unanswered::Refused(refusal)) if stream.config.retention == "workqueue" && refusal.code < 500 => {
            Err(OpenError::Wrong(format!(
                "the stream {} has retention `workqueue`, which lets each message go to one group only: {refusal}; give it \
                 retention `limits` or `interest`, or the group a stream of its own",
                stream.config.name
            )))
        }
        Err(error) => Err(error.into()),
    }
}

const CONSUMER_EXISTS: u64 = 10148;

/// A group that begins although the database has records of it has lost its place in the stream.
fn warn_of_lost_place(wish: &Subscription, stream: &StreamInfo, known: Option<&Known>) {
    if wish.known && known.is_none() && wish.start == StartPosition::New {
        tracing::warn!(
            group = wish.group,
            subject = wish.subject,
            stream = stream.config.name,
            "the database has records of the group, but its durable is gone; it begins with the first message of the stream and \
             not with new ones, so that nothing is skipped: what was handled is deduplicated by message id"
        );
    }
}

/// Sets where a new durable begins; says it in words.
fn begin(
    config: &mut Map<String, Value>,
    wish: &Subscription,
    stream: &StreamInfo,
    known: Option<&Known>,
) -> Result<String, OpenError> {
    // A work queue keeps nothing that is settled, and takes no other beginning.
    let queue = stream.config.retention == "workqueue";
    let begun = match (known, wish.start) {
        (Some(known), _)
            if known.stream == stream.config.name
                && known.stream_created == stream.created()
                && known.floor <= stream.last()
                && !queue =>
        {
            let words = format!("after message {}, up to which all were settled", known.floor);
            (Some(json!(known.floor + 1)), "by_start_sequence", words)
        }
        // All of a stream that was made anew, or was restored from a copy, came while we were subscribed.
        (Some(_), _) => (None, "all", "with the first message of the new stream".to_owned()),
        (None, StartPosition::New) if !queue && !wish.known => (None, "new", wish.start.to_string()),
        (None, StartPosition::Sequence(_) | StartPosition::Time(_)) if queue => {
            return Err(OpenError::Wrong(format!(
                "the stream {} has retention `workqueue`, of which every message is handled; write start = \"first\" in place \
                 of start = \"{}\"",
                stream.config.name, wish.start
            )));
        }
        (None, StartPosition::Sequence(sequence)) => {
            (Some(json!(sequence)), "by_start_sequence", wish.start.to_string())
        }
        (None, StartPosition::Time(millis)) => (Some(json!(rfc3339(millis))), "by_start_time", wish.start.to_string()),
        (None, _) => (None, "all", StartPosition::First.to_string()),
    };
    let (value, policy, words) = begun;
    if let Some(value) = value {
        let field = if policy == "by_start_time" {
            "opt_start_time"
        } else {
            "opt_start_seq"
        };
        config.insert(field.to_owned(), value);
    }
    config.insert("deliver_policy".to_owned(), json!(policy));
    Ok(words)
}

/// A time, in milliseconds since 1970, as the server reads it.
fn rfc3339(millis: i64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_leaves_out_is_its_default() {
        assert!(agrees(None, &json!([])) && agrees(None, &json!(false)) && agrees(None, &json!(0)));
        assert!(!agrees(None, &json!(-1)) && !agrees(Some(&json!(2)), &json!(-1)));
        assert!(agrees(Some(&json!(0)), &json!(0)));
    }
}
