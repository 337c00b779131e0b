//! What is remembered of messages that met trouble which may be theirs or the database's, until it is known whose it is.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::store::AttemptKey;

/// How often a message may lose its connection, while the database works, before that counts as its failure.
const LOST: u32 = 2;
/// How often a handler may fail with what looks like an outage, while the database works, before that counts.
const SUSPECTED: u32 = 6;
/// How often a message that needs what isn't there is tried in place before others have their turn.
const MISSING: u32 = 2;
/// How long a message may wait for what its deployment lacks where others have succeeded in the life of this program.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many messages are remembered.
const MOST: usize = 1024;

/// The strikes of one pipeline. They are forgotten with the process, which costs a message at most its free ones again.
#[derive(Debug, Default)]
pub(crate) struct Strikes(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    messages: HashMap<AttemptKey, Strike>,
    /// When a handler last succeeded.
    succeeded: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Strike {
    count: u32,
    first: Instant,
}

/// What follows from another strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strikeout {
    /// The message is tried again at once, and nothing is counted.
    Again,
    /// The message is put aside for a while, so that others show whether they meet the same; nothing is counted.
    Aside,
    /// It is this message's failure.
    Counts,
}

impl Strikes {
    /// The message lost its connection, though the database works.
    pub(super) fn lost(&self, key: &AttemptKey) -> Strikeout {
        match self.lock().strike(key).count {
            0..=LOST => Strikeout::Again,
            _ => Strikeout::Counts,
        }
    }

    /// What the handler asked for failed as in an outage, though the database works.
    pub(super) fn suspected(&self, key: &AttemptKey) -> Strikeout {
        match self.lock().strike(key).count {
            0..=SUSPECTED => Strikeout::Aside,
            _ => Strikeout::Counts,
        }
    }

    /// The message needs what isn't there. That counts only if others succeed meanwhile, which don't need it; or, where
    /// others can't get past it, if some did before.
    pub(super) fn missing(&self, key: &AttemptKey) -> Strikeout {
        let mut inner = self.lock();
        let strike = inner.strike(key);
        let others = inner.succeeded.is_some_and(|at| at > strike.first);
        let before = inner.succeeded.is_some() && strike.first.elapsed() > PATIENCE;
        match strike.count {
            _ if others || before => Strikeout::Counts,
            0..=MISSING => Strikeout::Again,
            _ => Strikeout::Aside,
        }
    }

    /// How often the message has struck.
    pub(super) fn count(&self, key: &AttemptKey) -> u32 {
        self.lock().messages.get(key).map_or(0, |strike| strike.count)
    }

    /// A handler succeeded, on this message.
    pub(super) fn succeeded(&self, key: &AttemptKey) {
        let mut inner = self.lock();
        inner.succeeded = Some(Instant::now());
        inner.messages.remove(key);
    }

    /// The message is dead-lettered, or a duplicate: it won't strike again.
    pub(super) fn forget(&self, key: &AttemptKey) {
        self.lock().messages.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn strike(&mut self, key: &AttemptKey) -> Strike {
        if self.messages.len() >= MOST && !self.messages.contains_key(key) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let outcomes: Vec<_> = (0..4).map(|_| strikes.lost(&key("1"))).collect();
        use Strikeout::{Again, Counts};
        assert_eq!(outcomes, [Again, Again, Counts, Counts]);
        assert_eq!(strikes.lost(&key("2")), Again);
        strikes.forget(&key("1"));
        assert_eq!(strikes.lost(&key("1")), Again);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_counts_only_where_others_succeed() {
        let strikes = Strikes::default();
        for expected in [Strikeout::Again, Strikeout::Again, Strikeout::Aside, Strikeout::Aside] {
            assert_eq!(strikes.missing(&key("bad")), expected);
        }
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(
            strikes.missing(&key("bad")),
            Strikeout::Aside,
            "nobody has ever succeeded"
        );
        strikes.succeeded(&key("good"));
        assert_eq!(strikes.missing(&key("bad")), Strikeout::Counts);
        assert_eq!(strikes.missing(&key("worse")), Strikeout::Again, "that was before");
        tokio::time::advance(PATIENCE * 2).await;
        assert_eq!(strikes.missing(&key("worse")), Strikeout::Counts, "nobody gets past it");
    }

    #[test]
    fn only_so_many_are_remembered() {
        let strikes = Strikes::default();
        for number in 0..2 * MOST {
            strikes.lost(&key(&number.to_string()));
        }
        assert_eq!(strikes.lock().messages.len(), MOST);
    }
}
