//! What a handler declares of itself: its metadata, with the policies that decide how its messages are handled.

use std::{
    fmt,
    panic::Location,
    time::{Duration, SystemTime},
};

use crate::backoff::Backoff;

/// When a delivery is acknowledged, and whether the message is claimed. The README has them side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AckStrategy {
    /// Claimed in the handler's transaction, acknowledged after the confirmed commit. The default.
    #[default]
    ExactlyOnce,
    /// Not claimed, acknowledged after the confirmed commit.
    AtLeastOnce,
    /// Not claimed, acknowledged after the transaction whatever the handler did with it; a failure is recorded as a dead
    /// letter first.
    OnPersist,
    /// Not claimed, acknowledged before the transaction begins.
    AtMostOnce,
}

impl AckStrategy {
    /// The strategy as it is written in the attribute.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly_once",
            Self::AtLeastOnce => "at_least_once",
            Self::OnPersist => "at_least_once, commit = on_persist",
            Self::AtMostOnce => "at_most_once",
        }
    }
}

/// Where a message's id comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdSource {
    /// The first of the usual headers that is there, else the position.
    #[default]
    Auto,
    /// One header; a message without it is rejected.
    Header(&'static str),
    /// A string or an integer in the JSON payload, by JSON pointer; a message without it is rejected.
    Json(&'static str),
    /// The message's position in the broker.
    Position,
}

/// Where a group that the broker doesn't know yet begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartPosition {
    /// At the first message that the broker still has. The default.
    #[default]
    First,
    /// Behind the last message at the time the group is made. A group of which the database has records has been there before:
    /// if the broker has lost its place, it begins at the first message, so that nothing is skipped.
    New,
    /// At the first message that was published at that time or later, in milliseconds since 1970.
    Time(i64),
    /// At that sequence of the stream (from 1). Only NATS and the embedded broker number their messages so.
    Sequence(u64),
}

impl fmt::Display for StartPosition {
    /// As it is written in the attribute.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::First => f.write_str("first"),
            Self::New => f.write_str("new"),
            Self::Time(millis) => match u64::try_from(millis) {
                Ok(millis) => {
                    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
                    write!(f, "{}", humantime::format_rfc3339_millis(time))
                }
                Err(_) => f.write_str("1970-01-01T00:00:00Z"),
            },
            Self::Sequence(sequence) => write!(f, "sequence:{sequence}"),
        }
    }
}

/// Everything that is known of a handler before the program starts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HandlerMeta {
    /// The path of the function, as in `app::orders::create_invoice`.
    pub name: &'static str,
    /// The consumer group.
    pub group: &'static str,
    /// The subject that it subscribes to.
    pub subject: &'static str,
    /// When a delivery is acknowledged.
    pub ack: AckStrategy,
    /// Where the message's id comes from.
    pub id: IdSource,
    /// Where a new group begins.
    pub start: StartPosition,
    /// How long one run of the handler may take.
    pub timeout: Duration,
    /// After how many failed attempts the message is dead-lettered; `None` is never.
    pub max_attempts: Option<u32>,
    /// How long a failed message waits.
    pub backoff: Backoff,
    /// How many messages are handled at a time.
    pub concurrency: u32,
    /// The stream that holds the subject, for a broker that has streams; `None` is whichever holds it.
    pub stream: Option<&'static str>,
    /// Whether each message waits until the one before it is settled.
    pub ordered: bool,
    /// The file of the attribute.
    pub file: &'static str,
    /// The line of the attribute.
    pub line: u32,
}

impl HandlerMeta {
    /// A handler with the defaults, declared where this is called.
    #[track_caller]
    #[must_use]
    pub const fn new(name: &'static str, group: &'static str, subject: &'static str) -> Self {
        let location = Location::caller();
        Self {
            name,
            group,
            subject,
            ack: AckStrategy::ExactlyOnce,
            id: IdSource::Auto,
            start: StartPosition::First,
            timeout: Duration::from_secs(300),
            max_attempts: Some(20),
            backoff: Backoff::DEFAULT,
            concurrency: 1,
            stream: None,
            ordered: false,
            file: location.file(),
            line: location.line(),
        }
    }

    /// Sets when a delivery is acknowledged.
    #[must_use]
    pub const fn ack(mut self, ack: AckStrategy) -> Self {
        self.ack = ack;
        self
    }

    /// Sets where the message's id comes from.
    #[must_use]
    pub const fn id(mut self, id: IdSource) -> Self {
        self.id = id;
        self
    }

    /// Sets where a new group begins.
    #[must_use]
    pub const fn start(mut self, start: StartPosition) -> Self {
        self.start = start;
        self
    }

    /// Sets how long one run may take, in milliseconds.
    #[must_use]
    pub const fn timeout_millis(mut self, millis: u64) -> Self {
        self.timeout = Duration::from_millis(millis);
        self
    }

    /// Sets after how many failed attempts the message is dead-lettered.
    #[must_use]
    pub const fn max_attempts(mut self, max_attempts: Option<u32>) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// Sets how long a failed message waits, in milliseconds.
    #[must_use]
    pub const fn backoff_millis(mut self, first: u64, max: u64) -> Self {
        self.backoff = Backoff {
            first: Duration::from_millis(first),
            max: Duration::from_millis(max),
        };
        self
    }

    /// Sets how many messages are handled at a time.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Names the stream that holds the subject.
    #[must_use]
    pub const fn stream(mut self, stream: &'static str) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Sets whether each message waits until the one before it is settled, redeliveries included.
    #[must_use]
    pub const fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    /// Where the handler is declared, as `file:line`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// The function's own name, without its path.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit("::").next().unwrap_or(self.name)
    }
}
