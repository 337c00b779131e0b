//! Reads a consumer's state every few seconds, in a task: its lag, whether it still exists, which streams hold its subject.

use std::sync::Arc;

use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use super::{
    durable::{Durable, DurableInfo},
    jetstream::JetStream,
    limits::MONITOR_INTERVAL,
    stream::streams_holding,
};
use crate::broker::{SourceStatus, Subscription};

/// The state of a consumer.
#[derive(Clone, Debug)]
pub(super) enum Observation {
    Exists {
        info: Arc<DurableInfo>,
        /// The streams that hold the subject; `None` if unknown, or if the subscription names its stream.
        streams: Option<Arc<[String]>>,
    },
    /// Deleted, or deleted and recreated.
    Gone,
}

/// The task, aborted on drop.
#[derive(Debug)]
pub(super) struct ConsumerMonitor {
    latest: watch::Receiver<Option<Observation>>,
    task: JoinHandle<()>,
}

impl ConsumerMonitor {
    pub(super) fn start(
        jetstream: Arc<JetStream>,
        durable: Arc<Durable>,
        subscription: Subscription,
        status: SourceStatus,
    ) -> Self {
        let (sender, latest) = watch::channel(None);
        let task = tokio::spawn(async move {
            loop {
                sleep(MONITOR_INTERVAL).await;
                let observation = observe(&jetstream, &durable, &subscription).await;
                status.set_lag(match &observation {
                    Some(Observation::Exists { info, .. }) => Some(info.lag()),
                    // A lag of unknown age is worse than none.
                    Some(Observation::Gone) | None => None,
                });
                if observation.is_some() && sender.send(observation).is_err() {
                    return;
                }
            }
        });
        Self { latest, task }
    }

    /// The latest observation, if it is new.
    pub(super) fn take_new(&mut self) -> Option<Observation> {
        if !self.latest.has_changed().unwrap_or(false) {
            return None;
        }
        self.latest.borrow_and_update().clone()
    }
}

impl Drop for ConsumerMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the state; `None` if the server doesn't answer.
pub(super) async fn observe(
    jetstream: &JetStream,
    durable: &Durable,
    subscription: &Subscription,
) -> Option<Observation> {
    let operation = format!("CONSUMER.INFO.{}.{}", durable.stream, durable.name);
    let info: DurableInfo = match jetstream.api(&operation, &Value::Null).await {
        Ok(info) => info,
        Err(error) if error.is_not_found() => return Some(Observation::Gone),
        Err(error) => {
            tracing::debug!(
                durable = durable.name,
                ?error,
                "the state of a durable consumer could not be read"
            );
            return None;
        }
    };
    if info.created != durable.created {
        return Some(Observation::Gone);
    }
    let streams = match subscription.stream {
        Some(_) => None,
        None => streams_holding(jetstream, &subscription.subject)
            .await
            .ok()
            .map(Arc::from),
    };
    Some(Observation::Exists {
        info: Arc::new(info),
        streams,
    })
}

/// Why the consumer doesn't get every message of its subject; `None` if it does.
pub(super) fn subject_moved(
    durable: &Durable,
    subject: &str,
    streams: Option<&[String]>,
    info: &DurableInfo,
) -> Option<String> {
    let (ours, lag) = (&durable.stream, info.lag());
    match streams? {
        [only] if only == ours => None,
        [] => Some(format!(
            "no stream holds the subject {subject} any more; give it back to the stream {ours}, which has {lag} messages left to \
             settle, or to another one"
        )),
        [only] => Some(format!(
            "the stream {only} holds the subject {subject} now; it is read when the {lag} messages left in the stream {ours} are \
             settled"
        )),
        several => Some(format!(
            "several streams hold the subject {subject} now ({}), and only the messages of {ours} are handled; name the one that \
             is meant, as in stream = \"{ours}\", and have a handler for each other one",
            several.join(", ")
        )),
    }
}

/// Whether exactly one other stream holds the subject, and everything of this one is settled.
pub(super) fn is_drained(durable: &Durable, streams: Option<&[String]>, info: &DurableInfo) -> bool {
    matches!(streams, Some([only]) if *only != durable.stream) && info.lag() == 0
}
