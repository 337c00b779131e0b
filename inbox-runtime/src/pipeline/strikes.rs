//! Counts the failures of a message that may be its own fault or the database's, until it is known whose they are.

use std::{collections::HashMap, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::store::AttemptKey;

/// How often a message may lose its connection, while the database works, before that counts as an attempt.
const CONNECTION_LOST: u32 = 2;
/// How often a handler may fail with what looks like an outage, while the database works, before that counts.
const SUSPECTED_OUTAGE: u32 = 6;
/// How often a message that needs what isn't there is retried in place before it is nakked.
const DEPLOYMENT: u32 = 2;
/// How long a message may need what isn't there where other messages have succeeded since the program started.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many messages are remembered.
const CAPACITY: usize = 1024;

/// A failure that may be the message's own or that of what it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection was lost, though the database works.
    ConnectionLost,
    /// The handler failed as in an outage, or asked for a fresh transaction too often, though the database works.
    SuspectedOutage,
    /// A table, column or right is missing.
    Deployment,
}

/// What follows from a strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnStrike {
    /// The message is retried in place; nothing is counted.
    RetryInPlace,
    /// The message is nakked, so that others show whether they fail alike; nothing is counted.
    Nak,
    /// It is this message's own failure.
    Count,
}

/// The strikes of one pipeline's messages. They end with the process, which costs a message at most its uncounted retries
/// once more.
#[derive(Debug, Default)]
pub(crate) struct Strikes(Mutex<StrikeBook>);

#[derive(Debug, Default)]
struct StrikeBook {
    messages: HashMap<AttemptKey, Strike>,
    /// When a handler last succeeded.
    succeeded: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Strike {
    count: u32,
    first: Instant,
}

impl Strikes {
    /// Counts a strike of the message. Returns how many it has, and what follows.
    pub(super) fn add(&self, fault: Fault, key: &AttemptKey) -> (u32, OnStrike) {
        let mut book = self.lock();
        let strike = book.add(key);
        let follows = match (fault, strike.count) {
            (Fault::ConnectionLost, 0..=CONNECTION_LOST) => OnStrike::RetryInPlace,
            (Fault::SuspectedOutage, 0..=SUSPECTED_OUTAGE) => OnStrike::Nak,
            (Fault::ConnectionLost | Fault::SuspectedOutage, _) => OnStrike::Count,
            (Fault::Deployment, _) if book.others_can_succeed(strike) => OnStrike::Count,
            (Fault::Deployment, 0..=DEPLOYMENT) => OnStrike::RetryInPlace,
            (Fault::Deployment, _) => OnStrike::Nak,
        };
        (strike.count, follows)
    }

    /// How many strikes the message has.
    pub(super) fn count(&self, key: &AttemptKey) -> u32 {
        self.lock().messages.get(key).map_or(0, |strike| strike.count)
    }

    /// The handler succeeded on this message.
    pub(super) fn succeeded(&self, key: &AttemptKey) {
        let mut book = self.lock();
        book.succeeded = Some(Instant::now());
        book.messages.remove(key);
    }

    /// The message is dead-lettered, or a duplicate.
    pub(super) fn forget(&self, key: &AttemptKey) {
        self.lock().messages.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, StrikeBook> {
        self.0.lock()
    }
}

impl StrikeBook {
    fn add(&mut self, key: &AttemptKey) -> Strike {
        if self.messages.len() >= CAPACITY && !self.messages.contains_key(key) {
            let oldest = self.messages.iter().min_by_key(|(_, strike)| strike.first);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.messages.remove(&oldest);
            }
        }
        let strike = self.messages.entry(key.clone()).or_insert_with(|| Strike {
            count: 0,
            first: Instant::now(),
        });
        strike.count += 1;
        *strike
    }

    /// Whether others have succeeded since the message's first strike; or, where it keeps others from running, before that.
    fn others_can_succeed(&self, strike: Strike) -> bool {
        let since = self.succeeded.is_some_and(|at| at > strike.first);
        let before = self.succeeded.is_some() && strike.first.elapsed() > PATIENCE;
        since || before
    }
}

#[cfg(test)]
mod tests {
    use super::{
        OnStrike::{Count, Nak, RetryInPlace},
        *,
    };

    fn key(position: &str) -> AttemptKey {
        AttemptKey {
            group: "billing".to_owned(),
            handler: "handler".to_owned(),
            position: position.to_owned(),
            message_id: None,
            fingerprint: crate::store::Fingerprint::UNKNOWN,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_counts_from_the_third_time_on() {
        let strikes = Strikes::default();
        let lost = |position| strikes.add(Fault::ConnectionLost, &key(position)).1;
        assert_eq!(
            [lost("1"), lost("1"), lost("1"), lost("1")],
            [RetryInPlace, RetryInPlace, Count, Count]
        );
        assert_eq!(lost("2"), RetryInPlace);
        strikes.forget(&key("1"));
        assert_eq!(lost("1"), RetryInPlace);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspected_outage_counts_from_the_seventh_time_on() {
        let strikes = Strikes::default();
        let strike = || strikes.add(Fault::SuspectedOutage, &key("1"));
        for count in 1..=6 {
            assert_eq!(strike(), (count, Nak));
        }
        assert_eq!(strike(), (7, Count));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_counts_only_where_others_succeed() {
        let strikes = Strikes::default();
        let missing = |position| strikes.add(Fault::Deployment, &key(position)).1;
        for expected in [RetryInPlace, RetryInPlace, Nak, Nak] {
            assert_eq!(missing("bad"), expected);
        }
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(missing("bad"), Nak, "nobody has ever succeeded");
        strikes.succeeded(&key("good"));
        assert_eq!(missing("bad"), Count);
        assert_eq!(missing("worse"), RetryInPlace, "that was before");
        tokio::time::advance(PATIENCE * 2).await;
        assert_eq!(missing("worse"), Count, "nobody gets past it");
    }

    #[test]
    fn only_so_many_are_remembered() {
        let strikes = Strikes::default();
        for number in 0..2 * CAPACITY {
            strikes.add(Fault::ConnectionLost, &key(&number.to_string()));
        }
        assert_eq!(strikes.lock().messages.len(), CAPACITY);
    }
}
