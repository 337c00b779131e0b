//! Streams: finding the one that holds a subject, and creating one on request.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    connect_options::NewStream,
    error::{BindError, RequestError},
    jetstream::JetStream,
};
use crate::broker::{Subscription, subject};

/// The server's answer to `STREAM.INFO`.
#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    created: String,
    pub(super) config: StreamConfig,
    #[serde(default)]
    state: StreamState,
}

#[derive(Debug, Default, Deserialize)]
struct StreamState {
    #[serde(default)]
    last_seq: u64,
    /// The subjects of stored messages with the count of each, if requested.
    #[serde(default)]
    subjects: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamConfig {
    pub(super) name: String,
    #[serde(default)]
    pub(super) subjects: Vec<String>,
    /// By these a stream holds messages of other subjects than its own.
    #[serde(default)]
    mirror: Value,
    #[serde(default)]
    sources: Value,
    #[serde(default)]
    subject_transform: Value,
    #[serde(default)]
    pub(super) retention: String,
    #[serde(default)]
    pub(super) consumer_limits: ConsumerLimits,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ConsumerLimits {
    #[serde(default)]
    pub(super) max_ack_pending: i64,
}

impl StreamInfo {
    /// The creation time in nanoseconds since 1970, which differs after the stream was deleted and recreated.
    pub(super) fn created(&self) -> u128 {
        let created = humantime::parse_rfc3339(&self.created).unwrap_or(SystemTime::UNIX_EPOCH);
        created
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos()
    }

    /// The sequence number of the last message that was ever stored.
    pub(super) fn last_seq(&self) -> u64 {
        self.state.last_seq
    }

    pub(super) fn is_work_queue(&self) -> bool {
        self.config.retention == "workqueue"
    }

    pub(super) async fn get(jetstream: &JetStream, name: &str) -> Result<Self, RequestError> {
        jetstream.api(&format!("STREAM.INFO.{name}"), &Value::Null).await
    }
}

/// The stream that the subscription names, or the one that holds its subject.
pub(super) async fn find_stream(jetstream: &JetStream, subscription: &Subscription) -> Result<StreamInfo, BindError> {
    match &subscription.stream {
        Some(name) => find_named(jetstream, subscription, name).await,
        None => find_by_subject(jetstream, &subscription.subject).await,
    }
}

async fn find_named(jetstream: &JetStream, subscription: &Subscription, name: &str) -> Result<StreamInfo, BindError> {
    let info = match StreamInfo::get(jetstream, name).await {
        Ok(info) => info,
        Err(error) if error.is_not_found() => {
            let requested = jetstream.options.new_streams.iter().find(|stream| stream.name == *name);
            let missing = || BindError::Unavailable(format!("there is no stream {name}"));
            create_stream(jetstream, requested.ok_or_else(missing)?).await?
        }
        Err(error) => return Err(error.into()),
    };
    check_holds(jetstream, subscription, info).await
}

async fn find_by_subject(jetstream: &JetStream, subject: &str) -> Result<StreamInfo, BindError> {
    let names = streams_holding(jetstream, subject).await?;
    match &names[..] {
        [only] => Ok(StreamInfo::get(jetstream, only).await?),
        [] => match requested_stream(jetstream, subject) {
            Some(stream) => Ok(create_stream(jetstream, stream).await?),
            None => Err(BindError::Unavailable(format!(
                "no stream holds the subject {subject}; create one that does, or let the program do it: \
                 `?create_stream=NAME:SUBJECTS` in the URL; one that has the subject from a source, a mirror or a transform must \
                 be named, as in stream = \"NAME\""
            ))),
        },
        several => Err(BindError::Misconfigured(format!(
            "the subject {subject} lies over several streams ({}); name the one that is meant, as in stream = \"{}\"",
            several.join(", "),
            several[0]
        ))),
    }
}

/// Fails if the stream has no message of the subject and can get none. The subjects of sources, mirrors and transforms
/// are unknown, and the server accepts a consumer on any subject.
async fn check_holds(
    jetstream: &JetStream,
    subscription: &Subscription,
    info: StreamInfo,
) -> Result<StreamInfo, BindError> {
    let config = &info.config;
    let has_other_origins = [&config.mirror, &config.sources, &config.subject_transform]
        .iter()
        .any(|value| !value.is_null());
    let mut subjects = config.subjects.iter();
    if has_other_origins || subjects.any(|held| subject::overlap(held, &subscription.subject)) {
        return Ok(info);
    }
    let operation = format!("STREAM.INFO.{}", config.name);
    let filter = json!({ "subjects_filter": subscription.subject });
    let filtered: StreamInfo = jetstream.api(&operation, &filter).await?;
    if filtered.state.subjects.is_some_and(|subjects| !subjects.is_empty()) {
        return Ok(info);
    }
    Err(BindError::Misconfigured(format!(
        "the stream {} holds {}, and nothing of the subject {}",
        config.name,
        config.subjects.join(", "),
        subscription.subject
    )))
}

/// The names of all streams of the account.
pub(super) async fn all_streams(jetstream: &JetStream) -> Result<Vec<String>, RequestError> {
    stream_names(jetstream, &json!({ "offset": 0 })).await
}

/// The names of all streams that hold a part of a subject.
pub(super) async fn streams_holding(jetstream: &JetStream, subject: &str) -> Result<Vec<String>, RequestError> {
    stream_names(jetstream, &json!({ "subject": subject })).await
}

async fn stream_names(jetstream: &JetStream, body: &Value) -> Result<Vec<String>, RequestError> {
    #[derive(Deserialize)]
    struct Names {
        #[serde(default)]
        streams: Option<Vec<String>>,
    }
    let names: Names = jetstream.api("STREAM.NAMES", body).await?;
    Ok(names.streams.unwrap_or_default())
}

/// The stream to create for a subject, if one was requested.
pub(super) fn requested_stream<'a>(jetstream: &'a JetStream, subject: &str) -> Option<&'a NewStream> {
    let fits = |stream: &&NewStream| stream.subjects.iter().any(|held| subject::overlap(held, subject));
    jetstream.options.new_streams.iter().find(fits)
}

/// Creates a stream with file storage and the server's default limits.
pub(super) async fn create_stream(jetstream: &JetStream, stream: &NewStream) -> Result<StreamInfo, RequestError> {
    let body = json!({
        "name": stream.name, "subjects": stream.subjects, "storage": "file", "retention": "limits", "discard": "old",
        "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "num_replicas": 1,
    });
    let created = jetstream.api(&format!("STREAM.CREATE.{}", stream.name), &body).await;
    if created.is_ok() {
        tracing::info!(stream = stream.name, subjects = ?stream.subjects, "created a stream");
    }
    created
}
