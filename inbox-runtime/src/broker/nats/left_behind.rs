//! Durables whose messages wait for nobody, which are warned of at the start.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    durable::{DurableInfo, GROUP_KEY, SUBJECT_KEY},
    link::{Link, Unanswered},
};
use crate::broker::Subscription;

/// How many streams are looked at.
const MAX_STREAMS: usize = 100;

/// A durable that a handler reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) stream: String,
    pub(super) durable: String,
}

/// Warns of durables that the handlers' groups have on other streams than they read, and in which messages wait.
pub(super) async fn warn_of_left_behind(link: Arc<Link>, used: Vec<Used>) {
    for stream in streams(&link).await.unwrap_or_default().iter().take(MAX_STREAMS) {
        // It is a courtesy: what can't be asked isn't reported.
        for info in durables_of(&link, stream).await.unwrap_or_default() {
            let durable = info.text("durable_name");
            let mut same = used.iter().filter(|used| used.durable == durable);
            let waiting = info.unsettled();
            if waiting == 0 || same.clone().any(|used| used.stream == *stream) {
                continue;
            }
            if let Some(reads) = same.next() {
                tracing::warn!(
                    stream,
                    durable,
                    waiting,
                    reads = reads.stream,
                    "messages of the group wait in a stream that doesn't hold the subject any more and are handled by nobody; \
                     give the subject back to that stream, or delete the durable there if they are to be dropped"
                );
            }
        }
    }
}

/// Every stream of the account.
async fn streams(link: &Link) -> Result<Vec<String>, Unanswered> {
    #[derive(Deserialize)]
    struct Names {
        #[serde(default)]
        streams: Option<Vec<String>>,
    }
    let names: Names = link.api("STREAM.NAMES", &json!({ "offset": 0 })).await?;
    Ok(names.streams.unwrap_or_default())
}

/// Warns of durables of the program's groups that no handler has any more: their messages wait for nobody.
pub(super) async fn warn_of_unused(link: &Link, streams: &[String], used: &[Subscription]) {
    for stream in streams {
        // It is a courtesy: what can't be asked isn't reported.
        for info in durables_of(link, stream).await.unwrap_or_default() {
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

/// Every durable of a stream. The server gives them by pages.
async fn durables_of(link: &Link, stream: &str) -> Result<Vec<DurableInfo>, Unanswered> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        total: usize,
        #[serde(default)]
        consumers: Option<Vec<DurableInfo>>,
    }
    let mut all = Vec::new();
    loop {
        let question = format!("CONSUMER.LIST.{stream}");
        let page: Page = link.api(&question, &json!({ "offset": all.len() })).await?;
        let found = page.consumers.unwrap_or_default();
        let last = found.is_empty();
        all.extend(found);
        if last || all.len() >= page.total {
            return Ok(all);
        }
    }
}
