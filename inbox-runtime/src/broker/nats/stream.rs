//! Streams: which one holds a subject, and making one that was asked for.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    config::NewStream,
    durable::OpenError,
    link::{Link, Unanswered},
};
use crate::broker::{Subscription, subject};

#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    created: String,
    pub(super) config: StreamConfig,
    #[serde(default)]
    state: StreamState,
}

#[derive(Debug, Default, Deserialize)]
struct StreamState {
    /// The number of the last message that was ever stored.
    #[serde(default)]
    last_seq: u64,
    /// The subjects of stored messages with the number of each, where that was asked.
    #[serde(default)]
    subjects: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamConfig {
    pub(super) name: String,
    #[serde(default)]
    pub(super) subjects: Vec<String>,
    /// Where messages come from beside its subjects, or under other ones.
    #[serde(default)]
    mirror: Value,
    #[serde(default)]
    sources: Value,
    #[serde(default)]
    subject_transform: Value,
    #[serde(default)]
    pub(super) retention: String,
    #[serde(default)]
    pub(super) consumer_limits: Limits,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Limits {
    #[serde(default)]
    pub(super) max_ack_pending: i64,
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

    /// The number of the last message that was ever stored.
    pub(super) fn last(&self) -> u64 {
        self.state.last_seq
    }

    pub(super) async fn of(link: &Link, name: &str) -> Result<Self, Unanswered> {
        link.api(&format!("STREAM.INFO.{name}"), &Value::Null).await
    }
}

/// The stream that was named, or the one that holds the subject.
pub(super) async fn find_stream(link: &Link, wish: &Subscription) -> Result<StreamInfo, OpenError> {
    if let Some(name) = &wish.stream {
        return match StreamInfo::of(link, name).await {
            Ok(info) => holds(link, wish, info).await,
            Err(error) if error.is_not_found() => match wanted(link, |stream| stream.name == *name) {
                Some(stream) => holds(link, wish, make_stream(link, stream).await?).await,
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
                     `?create_stream=NAME:SUBJECTS` in the URL; one that has the subject from a source, a mirror or a \
                     transform is named, as in stream = \"NAME\"",
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

/// The stream, unless no message of the subject is in it and none can come. What sources, mirrors and transforms bring is known
/// to the server only, which makes a durable on any subject.
async fn holds(link: &Link, wish: &Subscription, info: StreamInfo) -> Result<StreamInfo, OpenError> {
    let config = &info.config;
    let brings_others = [&config.mirror, &config.sources, &config.subject_transform];
    if brings_others.iter().any(|value| !value.is_null())
        || config.subjects.iter().any(|one| subject::overlap(one, &wish.subject))
    {
        return Ok(info);
    }
    let question = format!("STREAM.INFO.{}", config.name);
    let asked: StreamInfo = link.api(&question, &json!({ "subjects_filter": wish.subject })).await?;
    if asked.state.subjects.is_some_and(|subjects| !subjects.is_empty()) {
        return Ok(info);
    }
    Err(OpenError::Wrong(format!(
        "the stream {} holds {}, and nothing of the subject {}",
        config.name,
        config.subjects.join(", "),
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
