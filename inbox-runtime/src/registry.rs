//! What an annotated function registers: its metadata and how to decode its arguments.

use std::{
    fmt,
    panic::Location,
    time::{Duration, SystemTime},
};

use crate::{
    bound::Bound,
    extract::{DeliveryContext, Rejection, States},
    store::Store,
};

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

/// How long a failed message waits before it comes again: a random time between nothing and a bound that doubles with
/// each attempt, from `first` up to `max` (exponential back-off with full jitter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The bound after the first attempt.
    pub first: Duration,
    /// The largest bound.
    pub max: Duration,
}

impl Backoff {
    /// `1s..5m`.
    pub const DEFAULT: Self = Self {
        first: Duration::from_secs(1),
        max: Duration::from_secs(300),
    };

    /// The bound on the wait after `attempts` failed attempts (from 1).
    #[must_use]
    pub fn bound(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }

    /// A wait after `attempts` failed attempts: random, at most [`bound`](Self::bound).
    #[must_use]
    pub fn delay(&self, attempts: u32) -> Duration {
        self.bound(attempts).mul_f64(fastrand::f64())
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
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
    /// After how many failed attempts the message goes to the dead letters; `None` is never.
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

    /// Sets after how many failed attempts the message goes to the dead letters.
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

/// A check of one argument at the start of the program; the error says what is missing.
pub type ArgCheck = fn(&States) -> Result<(), String>;

/// How the arguments of a handler are made from a delivery.
pub type Decode<S> = fn(&DeliveryContext<'_>) -> Result<Bound<S>, Rejection>;

/// One registered handler of a store. Made by `#[inbox_handler]`, found through `inventory`.
pub struct Registration<S: Store> {
    pub(crate) meta: HandlerMeta,
    pub(crate) decode: Decode<S>,
    pub(crate) checks: &'static [ArgCheck],
}

impl<S: Store> Registration<S> {
    /// Puts a registration together.
    #[must_use]
    pub const fn new(meta: HandlerMeta, decode: Decode<S>, checks: &'static [ArgCheck]) -> Self {
        Self { meta, decode, checks }
    }
}

impl<S: Store> fmt::Debug for Registration<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backoffs() -> impl Strategy<Value = Backoff> {
        (1_u64..10_000, 0_u64..1_000_000).prop_map(|(first, more)| Backoff {
            first: Duration::from_millis(first),
            max: Duration::from_millis(first + more),
        })
    }

    proptest! {
        #[test]
        fn the_bound_doubles_until_the_largest(backoff in backoffs(), attempts in 1_u32..200) {
            let bound = backoff.bound(attempts);
            prop_assert!(backoff.first <= bound && bound <= backoff.max);
            let next = backoff.bound(attempts + 1);
            prop_assert_eq!(next, bound.saturating_mul(2).min(backoff.max));
        }

        #[test]
        fn the_delay_is_between_nothing_and_the_bound(backoff in backoffs(), attempts in 0_u32..=u32::MAX) {
            prop_assert!(backoff.delay(attempts) <= backoff.bound(attempts));
        }

        /// Full jitter: of many delays some are in the lower half and some in the upper one.
        #[test]
        fn the_delay_is_spread_over_the_whole_range(backoff in backoffs(), attempts in 1_u32..40) {
            let half = backoff.bound(attempts) / 2;
            let delays: Vec<_> = (0..200).map(|_| backoff.delay(attempts)).collect();
            prop_assert!(delays.iter().any(|delay| *delay < half));
            prop_assert!(delays.iter().any(|delay| *delay >= half));
        }
    }

    #[test]
    fn the_first_attempt_waits_no_longer_than_the_first_bound() {
        assert_eq!(Backoff::DEFAULT.bound(1), Duration::from_secs(1));
        assert_eq!(Backoff::DEFAULT.bound(0), Duration::from_secs(1));
        assert_eq!(Backoff::DEFAULT.bound(9), Duration::from_secs(256));
        assert_eq!(Backoff::DEFAULT.bound(10), Duration::from_secs(300));
        assert_eq!(Backoff::DEFAULT.bound(u32::MAX), Duration::from_secs(300));
    }
}
