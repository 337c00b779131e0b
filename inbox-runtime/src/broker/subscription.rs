//! What a handler asks of the broker.

use std::time::Duration;

use crate::{config::ACK_WAIT, handler::StartPosition};

/// One handler's subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscription {
    /// The consumer group; with the subject it names the durable.
    pub group: String,
    /// The subject, which may have wildcards.
    pub subject: String,
    /// Where a group that isn't known yet begins.
    pub start: StartPosition,
    /// Whether the database has records of the group. A place that the broker doesn't have is lost then, not new: `start = "new"`
    /// would skip what came meanwhile.
    pub known: bool,
    /// How long a delivery stays leased without a sign of life.
    pub ack_wait: Duration,
    /// How many deliveries may be out at a time.
    pub max_in_flight: usize,
    /// How long the handler may take, after which nobody keeps the delivery's lease alive.
    pub timeout: Duration,
    /// The stream that holds the subject, for a broker that has streams. `None`: the broker finds it by the subject.
    pub stream: Option<String>,
    /// Whether a message may be delivered only after the one before it is settled, redeliveries included.
    pub ordered: bool,
    /// Whether a message that was handled before is detected by its claim (default true). Where it isn't, it is handled again: a broker
    /// that commits acknowledgements later commits them sooner.
    pub claims: bool,
}

impl Subscription {
    /// A subscription with the defaults: from the first message, leases of 30 s, one delivery at a time.
    #[must_use]
    pub fn new(group: impl Into<String>, subject: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            subject: subject.into(),
            start: StartPosition::First,
            known: false,
            ack_wait: ACK_WAIT,
            max_in_flight: 1,
            timeout: Duration::from_secs(300),
            stream: None,
            ordered: false,
            claims: true,
        }
    }

    /// Sets where a new group begins.
    #[must_use]
    pub fn start(mut self, start: StartPosition) -> Self {
        self.start = start;
        self
    }

    /// Sets whether the database has records of the group.
    #[must_use]
    pub fn known(mut self, known: bool) -> Self {
        self.known = known;
        self
    }

    /// Sets how long a delivery stays leased.
    #[must_use]
    pub fn ack_wait(mut self, ack_wait: Duration) -> Self {
        self.ack_wait = ack_wait;
        self
    }

    /// Sets how many deliveries may be out at a time.
    #[must_use]
    pub fn max_in_flight(mut self, max: usize) -> Self {
        self.max_in_flight = max;
        self
    }

    /// Sets how long the handler may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Names the stream that holds the subject.
    #[must_use]
    pub fn stream(mut self, stream: Option<String>) -> Self {
        self.stream = stream;
        self
    }

    /// Sets whether a message that was handled before is detected by its claim.
    #[must_use]
    pub fn claims(mut self, claims: bool) -> Self {
        self.claims = claims;
        self
    }

    /// Sets whether each message waits until the one before it is settled.
    #[must_use]
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }
}
