//! The durable consumer of a source on the server: finding its stream, comparing it with what is wanted, making it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    config::{MAX_DURABLE, NewStream},
    link::{Link, Unanswered},
};
use crate::{
    broker::{BrokerError, Subscription, subject},
    registry::StartPosition,
};

/// In a durable's metadata, so that those of ours are known that nobody uses any more.
const GROUP_KEY: &str = "inbox_group";
const SUBJECT_KEY: &str = "inbox_subject";

/// The name of the durable of a group and a subject: both as they are, with the characters that a name must not have
/// replaced by ones that neither of them has. So no two pairs share a name.
pub(super) fn name(group: &str, subject: &str) -> Result<String, BrokerError> {
    let replaced = |text: &str| text.replace('.', ",").replace('*', "+").replace('>', "#");
    let name = format!("{}@{}", replaced(group), replaced(subject));
    if name.len() > MAX_DURABLE {
        return Err(BrokerError::Invalid(format!(
            "the group `{group}` and the subject `{subject}` make a durable whose name is {} bytes long; NATS takes at most \
             {MAX_DURABLE}; shorten one of them",
            name.len()
        )));
    }
    Ok(name)
}

/// The server keeps it in whole nanoseconds, and takes zero for its own default.
pub(super) fn check_ack_wait(ack_wait: Duration) -> Result<(), BrokerError> {
    if (1..=i64::MAX as u128).contains(&ack_wait.as_nanos()) {
        return Ok(());
    }
    Err(BrokerError::Invalid(format!(
        "the ack-wait of {ack_wait:?} can't be kept by a NATS server; write one as in 30 s"
    )))
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    created: String,
    pub(super) config: StreamConfig,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamConfig {
    pub(super) name: String,
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    retention: String,
    #[serde(default)]
    consumer_limits: Limits,
}

#[derive(Debug, Default, Deserialize)]
struct Limits {
    #[serde(default)]
    max_ack_pending: i64,
}

impl StreamInfo {
    /// When it was made, in nanoseconds: what tells it from one of the same name that was made after it was deleted.
    pub(super) fn created(&self) -> u128 {
        let created = humantime::parse_rfc3339(&self.created).unwrap_or(SystemTime::UNIX_EPOCH);
        created
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos()
    }

    pub(super) async fn of(link: &Link, name: &str) -> Result<Self, Unanswered> {
        link.api(&format!("STREAM.INFO.{name}"), &Value::Null).await
    }
}

/// What the server says about a durable.
#[derive(Debug, Deserialize)]
pub(super) struct DurableInfo {
    pub(super) created: String,
    config: Map<String, Value>,
    pub(super) delivered: Sequences,
    pub(super) ack_floor: Sequences,
    pub(super) num_ack_pending: u64,
    pub(super) num_pending: u64,
    #[serde(default)]
    pub(super) paused: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Sequences {
    pub(super) consumer_seq: u64,
    pub(super) stream_seq: u64,
}

impl DurableInfo {
    fn number(&self, field: &str) -> i64 {
        self.config.get(field).and_then(Value::as_i64).unwrap_or_default()
    }

    fn text(&self, field: &str) -> &str {
        self.config.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// How long it waits for a sign of life.
    pub(super) fn ack_wait(&self) -> Duration {
        Duration::from_nanos(self.number("ack_wait").unsigned_abs())
    }
}

/// A durable that is there and as it must be. Its leases share it.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) stream: String,
    pub(super) stream_created: u128,
    pub(super) name: String,
    /// When it was made, which tells it from one of the same name that was made after it was deleted.
    pub(super) created: String,
    pub(super) ack_wait: Duration,
    /// It has been replaced.
    gone: AtomicBool,
    /// Its stream has been replaced: the numbers of its messages mean others by now.
    stream_gone: AtomicBool,
}

impl Durable {
    pub(super) fn position(&self, seq: u64) -> String {
        position(&self.stream, self.stream_created, seq)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(super) fn is_stream_gone(&self) -> bool {
        self.stream_gone.load(Ordering::SeqCst)
    }

    /// It is gone, or another one by now: nothing that its leases say may reach what comes after it.
    pub(super) fn lost(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.stream_gone.store(true, Ordering::SeqCst);
    }

    /// It was looked for, and `found` is what there is.
    pub(super) fn found(&self, found: &Self) {
        let same_stream = self.stream == found.stream && self.stream_created == found.stream_created;
        self.stream_gone.store(!same_stream, Ordering::SeqCst);
        self.gone
            .store(!same_stream || self.created != found.created, Ordering::SeqCst);
    }
}

/// Where a message is kept.
pub(super) fn position(stream: &str, created: u128, seq: u64) -> String {
    format!("nats:{stream}:{created}:{seq}")
}

/// What a source knew of its durable when it last looked.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) stream: String,
    pub(super) stream_created: u128,
    /// Every message up to this one is settled.
    pub(super) floor: u64,
}

/// What can't be opened now or ever.
#[derive(Debug)]
pub(super) enum OpenError {
    /// It may be there later.
    NotYet(String),
    /// It is there and wrong.
    Wrong(String),
}

impl From<Unanswered> for OpenError {
    fn from(unanswered: Unanswered) -> Self {
        match BrokerError::from(unanswered) {
            BrokerError::Invalid(why) => Self::Wrong(why),
            error => Self::NotYet(error.to_string()),
        }
    }
}

/// Finds or makes the durable of a subscription.
pub(super) async fn open(
    link: &Link,
    wish: &Subscription,
    name: &str,
    known: Option<&Known>,
) -> Result<(Durable, DurableInfo), OpenError> {
    let stream = find_stream(link, wish).await?;
    let question = format!("CONSUMER.INFO.{}.{name}", stream.config.name);
    let there: Result<DurableInfo, _> = link.api(&question, &Value::Null).await;
    let info = match there {
        Ok(info) => adjust(link, wish, &stream, name, info).await?,
        Err(error) if error.is_not_found() => make(link, wish, &stream, name, known).await?,
        Err(error) => return Err(error.into()),
    };
    let durable = Durable {
        stream_created: stream.created(),
        stream: stream.config.name,
        name: name.to_owned(),
        created: info.created.clone(),
        ack_wait: info.ack_wait(),
        gone: AtomicBool::new(false),
        stream_gone: AtomicBool::new(false),
    };
    Ok((durable, info))
}

/// The stream that was named, or the one that holds the subject.
async fn find_stream(link: &Link, wish: &Subscription) -> Result<StreamInfo, OpenError> {
    if let Some(name) = &wish.stream {
        return match StreamInfo::of(link, name).await {
            Ok(info) => holds(wish, info),
            Err(error) if error.is_not_found() => match wanted(link, |stream| stream.name == *name) {
                Some(stream) => holds(wish, make_stream(link, stream).await?),
                None => Err(OpenError::NotYet(format!("there is no stream {name}"))),
            },
            Err(error) => Err(error.into()),
        };
    }
    let names = streams_of(link, &wish.subject).await?;
    match &names[..] {
        [only] => Ok(StreamInfo::of(link, only).await?),
        [] => {
            let fits = |stream: &NewStream| stream.subjects.iter().any(|one| subject::overlap(one, &wish.subject));
            match wanted(link, fits) {
                Some(stream) => Ok(make_stream(link, stream).await?),
                None => Err(OpenError::NotYet(format!(
                    "no stream holds the subject {}; make one that does, or let the program do it: \
                     `?create_stream=NAME:SUBJECTS` in the URL",
                    wish.subject
                ))),
            }
        }
        several => Err(OpenError::Wrong(format!(
            "the subject {} lies over several streams ({}); name the one that is meant, as in stream = \"{}\"",
            wish.subject,
            several.join(", "),
            several[0]
        ))),
    }
}

fn holds(wish: &Subscription, info: StreamInfo) -> Result<StreamInfo, OpenError> {
    // A mirror has no subjects of its own.
    if info.config.subjects.is_empty()
        || info
            .config
            .subjects
            .iter()
            .any(|one| subject::overlap(one, &wish.subject))
    {
        return Ok(info);
    }
    Err(OpenError::Wrong(format!(
        "the stream {} holds {}, and nothing of the subject {}",
        info.config.name,
        info.config.subjects.join(", "),
        wish.subject
    )))
}

/// Every stream that holds a part of that subject.
pub(super) async fn streams_of(link: &Link, subject: &str) -> Result<Vec<String>, Unanswered> {
    #[derive(Deserialize)]
    struct Names {
        #[serde(default)]
        streams: Option<Vec<String>>,
    }
    let names: Names = link.api("STREAM.NAMES", &json!({ "subject": subject })).await?;
    Ok(names.streams.unwrap_or_default())
}

fn wanted(link: &Link, fits: impl Fn(&NewStream) -> bool) -> Option<&NewStream> {
    link.settings.new_streams.iter().find(|stream| fits(stream))
}

/// Makes a stream that was asked for: on the disk, and everything else as the server has it.
pub(super) async fn make_stream(link: &Link, stream: &NewStream) -> Result<StreamInfo, Unanswered> {
    let body = json!({
        "name": stream.name, "subjects": stream.subjects, "storage": "file", "retention": "limits", "discard": "old",
        "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "num_replicas": 1,
    });
    let made = link.api(&format!("STREAM.CREATE.{}", stream.name), &body).await;
    if made.is_ok() {
        tracing::info!(stream = stream.name, subjects = ?stream.subjects, "a stream was made");
    }
    made
}

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
async fn adjust(
    link: &Link,
    wish: &Subscription,
    stream: &StreamInfo,
    name: &str,
    info: DurableInfo,
) -> Result<DurableInfo, OpenError> {
    let refused = |field: &str, wanted: &str, actual: &str| {
        OpenError::Wrong(format!(
            "the durable {name} of the stream {} has {field} `{actual}`, but `{wanted}` is wanted and the server can't \
             change that; delete the durable (what was handled is in the inbox), or use another group",
            stream.config.name
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
async fn make(
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
    let start = begin(&mut config, wish, stream, known);
    let body = json!({ "stream_name": stream.config.name, "config": config, "action": "create" });
    let question = format!("CONSUMER.CREATE.{}.{name}", stream.config.name);
    match link.api(&question, &body).await {
        Ok(info) => {
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

/// Sets where a new durable begins; says it in words.
fn begin(config: &mut Map<String, Value>, wish: &Subscription, stream: &StreamInfo, known: Option<&Known>) -> String {
    // A work queue keeps nothing that is settled, and takes no other beginning.
    let queue = stream.config.retention == "workqueue";
    let (policy, words) = match known {
        Some(known) if known.stream == stream.config.name && known.stream_created == stream.created() && !queue => {
            config.insert("opt_start_seq".to_owned(), json!(known.floor + 1));
            (
                "by_start_sequence",
                format!("after message {}, up to which all were settled", known.floor),
            )
        }
        // All of a stream that was made anew came while we were subscribed.
        Some(_) => ("all", "with the first message of the new stream".to_owned()),
        None if wish.start == StartPosition::New && !queue => ("new", StartPosition::New.as_str().to_owned()),
        None => ("all", StartPosition::First.as_str().to_owned()),
    };
    config.insert("deliver_policy".to_owned(), json!(policy));
    words
}

/// Warns of durables of the program's groups that no handler has any more: their messages wait for nobody.
pub(super) async fn warn_of_unused(link: &Link, streams: &[String], used: &[Subscription]) {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        consumers: Option<Vec<DurableInfo>>,
    }
    for stream in streams {
        let page: Result<Page, _> = link
            .api(&format!("CONSUMER.LIST.{stream}"), &json!({ "offset": 0 }))
            .await;
        for info in page.ok().and_then(|page| page.consumers).unwrap_or_default() {
            let metadata = info.config.get("metadata");
            let of = |key| metadata.and_then(|metadata| metadata.get(key)).and_then(Value::as_str);
            let (Some(group), Some(subject)) = (of(GROUP_KEY), of(SUBJECT_KEY)) else {
                continue;
            };
            let ours = used.iter().any(|wish| wish.group == group);
            if ours && !used.iter().any(|wish| wish.group == group && wish.subject == subject) {
                let durable = info.text("durable_name");
                tracing::warn!(
                    stream,
                    durable,
                    group,
                    subject,
                    "a durable has no handler any more; delete it if that is meant"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_can_be_read() {
        assert_eq!(
            name("billing", "order.created").expect("a name"),
            "billing@order,created"
        );
        assert_eq!(name("billing.v2", "order.*.>").expect("a name"), "billing,v2@order,+,#");
    }

    #[test]
    fn f53_a_name_that_is_too_long_says_by_what() {
        let error = name(&"g".repeat(128), &"s".repeat(200))
            .expect_err("too long")
            .to_string();
        assert!(error.contains("329 bytes") && error.contains("255"), "{error}");
    }

    proptest! {
        #[test]
        fn no_two_pairs_share_a_name(
            one in ("[a-z._-]{1,4}", "[a-z._*>-]{1,4}"),
            other in ("[a-z._-]{1,4}", "[a-z._*>-]{1,4}"),
        ) {
            let name = |pair: &(String, String)| name(&pair.0, &pair.1).expect("a name");
            prop_assert_eq!(name(&one) == name(&other), one == other);
            prop_assert!(!name(&one).contains(['.', '*', '>', ' ', '/', '\\']));
        }
    }

    #[test]
    fn what_the_server_leaves_out_is_its_default() {
        assert!(agrees(None, &json!([])) && agrees(None, &json!(false)) && agrees(None, &json!(0)));
        assert!(!agrees(None, &json!(-1)) && !agrees(Some(&json!(2)), &json!(-1)));
        assert!(agrees(Some(&json!(0)), &json!(0)));
    }
}
