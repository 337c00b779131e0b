//! A source's binding to its durable consumer: the inbox of its pull requests, and the request in flight.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    delivery_connection::Subscriber, durable::Durable, jetstream::JetStream, limits::PULL_GRACE,
    monitor::ConsumerMonitor,
};

/// A consumer that exists, and the subscriptions by which its messages are received.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) durable: Arc<Durable>,
    /// The prefix of the reply subjects of pull requests.
    inbox: String,
    pub(super) messages: Subscriber,
    /// The server's advisory that the stream was deleted.
    pub(super) stream_deleted_advisory: Subscriber,
    /// The number of the last pull request, the last token of its reply subject.
    last_request: u64,
    /// The pull request in flight.
    pub(super) pull: Option<PullRequest>,
    /// The consumer sequence of the last delivery. A smaller one comes from a recreated consumer.
    pub(super) last_consumer_seq: u64,
    /// When `messages` was last empty: a delivery was received after that.
    pub(super) drained_at: Instant,
    pub(super) monitor: ConsumerMonitor,
    /// The connects of the delivery connection when the last request was sent.
    connects: u64,
}

/// A pull request that the server holds.
#[derive(Debug)]
pub(super) struct PullRequest {
    pub(super) number: u64,
    /// How many more messages it may deliver.
    pub(super) remaining: usize,
    /// When it counts as lost.
    pub(super) lost_at: Instant,
}

impl Binding {
    /// Subscribes to the inbox and the advisory.
    pub(super) fn new(jetstream: &JetStream, durable: Arc<Durable>, monitor: ConsumerMonitor) -> Self {
        let deliveries = &jetstream.deliveries;
        let inbox = jetstream.options.new_inbox();
        let advisory = format!("$JS.EVENT.ADVISORY.STREAM.DELETED.{}", durable.stream);
        Self {
            messages: deliveries.subscribe(format!("{inbox}.*")),
            stream_deleted_advisory: deliveries.subscribe(advisory),
            durable,
            inbox,
            last_request: 0,
            pull: None,
            last_consumer_seq: 0,
            drained_at: Instant::now(),
            monitor,
            connects: deliveries.connects(),
        }
    }

    /// The subject that the inbox subscribes to.
    pub(super) fn inbox_wildcard(&self) -> String {
        format!("{}.*", self.inbox)
    }

    /// The subject of pull requests.
    pub(super) fn pull_subject(&self, jetstream: &JetStream) -> String {
        let Durable { stream, name, .. } = &*self.durable;
        jetstream.api_subject(&format!("CONSUMER.MSG.NEXT.{stream}.{name}"))
    }

    /// Sends a pull request for at most `max` messages: those that are ready, or those that come within `wait`. Returns
    /// its number; `None` if not connected.
    pub(super) fn send_pull(&mut self, jetstream: &JetStream, max: usize, wait: Option<Duration>) -> Option<u64> {
        let body = match wait {
            None => json!({ "batch": max, "no_wait": true }),
            Some(wait) => json!({ "batch": max, "expires": u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX) }),
        };
        let number = self.last_request + 1;
        let reply = format!("{}.{number}", self.inbox);
        let subject = self.pull_subject(jetstream);
        if !jetstream.deliveries.send_request(&subject, &reply, &body.to_string()) {
            return None;
        }
        self.last_request = number;
        if let Some(wait) = wait {
            self.pull = Some(PullRequest {
                number,
                remaining: max,
                lost_at: Instant::now() + wait + PULL_GRACE,
            });
        }
        Some(number)
    }

    /// A reconnect loses the pull request in flight.
    pub(super) fn check_reconnect(&mut self, jetstream: &JetStream) {
        let connects = jetstream.deliveries.connects();
        if self.connects != connects {
            self.connects = connects;
            self.pull = None;
        }
    }

    /// Counts a delivery against the pull request in flight.
    pub(super) fn count_delivery(&mut self) {
        if let Some(pull) = &mut self.pull {
            pull.remaining = pull.remaining.saturating_sub(1);
            if pull.remaining == 0 {
                self.pull = None;
            }
        }
    }

    /// The pull request of that number has ended.
    pub(super) fn end_pull(&mut self, number: u64) {
        if self.pull.as_ref().is_some_and(|pull| pull.number == number) {
            self.pull = None;
        }
    }
}
