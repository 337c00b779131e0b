//! Warns at the start of durables whose messages no handler reads.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    durable::{Durable, DurableInfo, GROUP_KEY, SUBJECT_KEY},
    error::RequestError,
    jetstream::JetStream,
    stream::all_streams,
};
use crate::broker::Subscription;

/// How many streams are checked.
const MAX_STREAMS: usize = 100;

/// A consumer that a handler reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConsumerInUse {
    pub(super) stream: String,
    durable: String,
}

impl From<&Durable> for ConsumerInUse {
    fn from(durable: &Durable) -> Self {
        Self {
            stream: durable.stream.clone(),
            durable: durable.name.clone(),
        }
    }
}

/// Warns of the handlers' durables on streams that used to hold their subjects and have unsettled messages. Best
/// effort: what can't be read is skipped.
pub(super) async fn warn_of_old_streams(jetstream: Arc<JetStream>, used: Vec<ConsumerInUse>) {
    for stream in all_streams(&jetstream)
        .await
        .unwrap_or_default()
        .iter()
        .take(MAX_STREAMS)
    {
        for info in durables_of(&jetstream, stream).await.unwrap_or_default() {
            let durable = info.text("durable_name");
            let mut same = used.iter().filter(|used| used.durable == durable);
            let lag = info.lag();
            if lag == 0 || same.clone().any(|used| used.stream == *stream) {
                continue;
            }
            if let Some(reads) = same.next() {
                tracing::warn!(
                    stream,
                    durable,
                    waiting = lag,
                    reads = reads.stream,
                    "a stream that doesn't hold the subject any more has messages of the group, which nobody handles; give the \
                     subject back to that stream, or delete the durable there to drop them"
                );
            }
        }
    }
}

/// Warns of durables of the program's groups for which there is no handler. Best effort, as above.
pub(super) async fn warn_of_unused(jetstream: &JetStream, streams: &[String], used: &[Subscription]) {
    for stream in streams {
        for info in durables_of(jetstream, stream).await.unwrap_or_default() {
            let metadata = info.config.get("metadata");
            let value = |key| metadata.and_then(|metadata| metadata.get(key)).and_then(Value::as_str);
            let (Some(group), Some(subject)) = (value(GROUP_KEY), value(SUBJECT_KEY)) else {
                continue;
            };
            let ours = used.iter().any(|used| used.group == group);
            if ours && !used.iter().any(|used| used.group == group && used.subject == subject) {
                let durable = info.text("durable_name");
                tracing::warn!(
                    stream,
                    durable,
                    group,
                    subject,
                    "a durable has no handler any more; delete it unless a handler for it comes back"
                );
            }
        }
    }
}

/// All durables of a stream, page by page.
async fn durables_of(jetstream: &JetStream, stream: &str) -> Result<Vec<DurableInfo>, RequestError> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        total: usize,
        #[serde(default)]
        consumers: Option<Vec<DurableInfo>>,
    }
    let mut all = Vec::new();
    loop {
        let operation = format!("CONSUMER.LIST.{stream}");
        let page: Page = jetstream.api(&operation, &json!({ "offset": all.len() })).await?;
        let found = page.consumers.unwrap_or_default();
        let last = found.is_empty();
        all.extend(found);
        if last || all.len() >= page.total {
            return Ok(all);
        }
    }
}
