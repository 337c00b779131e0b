//! How a durable is, asked by a task of its own every few seconds: its lag, whether it is there, where its subject is.

use std::sync::Arc;

use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use super::{
    config::LOOK_INTERVAL,
    durable::{Durable, DurableInfo},
    link::Link,
    stream::streams_of,
};
use crate::broker::{SourceStatus, Subscription};

/// What was found.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    There {
        info: Arc<DurableInfo>,
        /// The streams that hold the subject; `None` where that isn't asked or isn't known.
        streams: Option<Arc<[String]>>,
    },
    /// It isn't there any more, or another one is.
    Gone,
}

/// Looks at a durable until it is dropped.
#[derive(Debug)]
pub(super) struct Observer {
    seen: watch::Receiver<Option<Seen>>,
    task: JoinHandle<()>,
}

impl Observer {
    pub(super) fn start(link: Arc<Link>, durable: Arc<Durable>, wish: Subscription, status: SourceStatus) -> Self {
        let (sender, seen) = watch::channel(None);
        let task = tokio::spawn(async move {
            loop {
                sleep(LOOK_INTERVAL).await;
                let seen = look(&link, &durable, &wish).await;
                status.set_lag(match &seen {
                    Some(Seen::There { info, .. }) => Some(info.unsettled()),
                    // Unknown is not the same as what it was.
                    Some(Seen::Gone) | None => None,
                });
                if seen.is_some() && sender.send(seen).is_err() {
                    return;
                }
            }
        });
        Self { seen, task }
    }

    /// What was seen since the last time.
    pub(super) fn seen(&mut self) -> Option<Seen> {
        if !self.seen.has_changed().unwrap_or(false) {
            return None;
        }
        self.seen.borrow_and_update().clone()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Asks the server; `None` if it doesn't answer.
pub(super) async fn look(link: &Link, durable: &Durable, wish: &Subscription) -> Option<Seen> {
    let question = format!("CONSUMER.INFO.{}.{}", durable.stream, durable.name);
    let info: DurableInfo = match link.api(&question, &Value::Null).await {
        Ok(info) => info,
        Err(error) if error.is_not_found() => return Some(Seen::Gone),
        Err(error) => {
            tracing::debug!(durable = durable.name, ?error, "the durable could not be looked at");
            return None;
        }
    };
    if info.created != durable.created {
        return Some(Seen::Gone);
    }
    let streams = match wish.stream {
        // Whoever names the stream means that one.
        Some(_) => None,
        None => streams_of(link, &wish.subject).await.ok().map(Arc::from),
    };
    Some(Seen::There {
        info: Arc::new(info),
        streams,
    })
}

/// Why not every message of the subject comes from the durable's stream; `None` if they do.
pub(super) fn elsewhere(
    durable: &Durable,
    subject: &str,
    streams: Option<&[String]>,
    info: &DurableInfo,
) -> Option<String> {
    let (ours, left) = (&durable.stream, info.unsettled());
    match streams? {
        [only] if only == ours => None,
        [] => Some(format!(
            "no stream holds the subject {subject} any more; give it back to the stream {ours}, which has {left} messages left to \
             settle, or to another one"
        )),
        [only] => Some(format!(
            "the subject {subject} is held by the stream {only} by now, whose messages follow when the {left} of the stream \
             {ours} are settled"
        )),
        several => Some(format!(
            "the subject {subject} lies over several streams by now ({}), and only what is in {ours} is handled; name the one \
             that is meant, as in stream = \"{ours}\", and have a handler for each other one",
            several.join(", ")
        )),
    }
}

/// Whether the subject is held by one other stream, and everything of this one is settled.
pub(super) fn is_drained(durable: &Durable, streams: Option<&[String]>, info: &DurableInfo) -> bool {
    matches!(streams, Some([only]) if *only != durable.stream) && info.unsettled() == 0
}

/// What the stream is called among the parts of a source.
pub(super) fn stream_part(durable: &Durable) -> String {
    format!("stream {}", durable.stream)
}
