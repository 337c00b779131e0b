//! Whether a message that may have been delivered before gets another attempt, by what the tables have of it.

use super::{
    claim::Fingerprint,
    encoding::attempts,
    rows::{AttemptLimit, BeginAttempt},
};

/// What the tables have of a message.
#[derive(Clone, Debug)]
pub(crate) struct KnownMessage {
    /// The fingerprint of its inbox row, where that row counts.
    pub(crate) handled: Option<i64>,
    /// It is dead-lettered, and no replay is requested.
    pub(crate) dead_lettered: bool,
    /// `None` without a row in `inbox_attempts`.
    pub(crate) attempts: Option<i64>,
    pub(crate) unfinished: Option<bool>,
    pub(crate) last_error: Option<String>,
}

impl KnownMessage {
    /// The answer; a [`BeginAttempt::Begun`] has yet to be noted.
    pub(crate) fn decide(self, limit: AttemptLimit) -> BeginAttempt {
        if let Some(fingerprint) = self.handled {
            return BeginAttempt::Handled(Fingerprint::from_i64(fingerprint));
        }
        if self.dead_lettered {
            return BeginAttempt::DeadLettered;
        }
        let made = self.attempts.map_or(0, attempts);
        // The first delivery of a message leaves no row, so that its attempt may be unfinished.
        let unfinished = self.unfinished.unwrap_or(!limit.replay);
        if limit.max.is_some_and(|max| made >= max) {
            return BeginAttempt::Exhausted {
                attempts: made,
                unfinished,
                error: self.last_error,
            };
        }
        if unfinished {
            BeginAttempt::Suspect
        } else {
            BeginAttempt::Begun(made)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: KnownMessage = KnownMessage {
        handled: None,
        dead_lettered: false,
        attempts: None,
        unfinished: None,
        last_error: None,
    };

    fn decide(known: KnownMessage, max: Option<u32>, replay: bool) -> BeginAttempt {
        let claims = true;
        known.decide(AttemptLimit { max, claims, replay })
    }

    fn failed(attempts: i64, unfinished: bool) -> KnownMessage {
        KnownMessage {
            attempts: Some(attempts),
            unfinished: Some(unfinished),
            last_error: Some("no network".to_owned()),
            ..UNKNOWN
        }
    }

    #[test]
    fn a_redelivery_without_a_row_is_suspect_and_a_replay_is_not() {
        assert_eq!(decide(UNKNOWN, Some(3), false), BeginAttempt::Suspect);
        assert_eq!(decide(UNKNOWN, Some(3), true), BeginAttempt::Begun(0));
    }

    #[test]
    fn attempts_count_up_to_the_limit() {
        assert_eq!(decide(failed(2, false), Some(3), false), BeginAttempt::Begun(2));
        assert_eq!(decide(failed(2, true), Some(3), false), BeginAttempt::Suspect);
        assert_eq!(decide(failed(9, false), None, false), BeginAttempt::Begun(9));
        for unfinished in [false, true] {
            let exhausted = BeginAttempt::Exhausted {
                attempts: 3,
                unfinished,
                error: Some("no network".to_owned()),
            };
            assert_eq!(decide(failed(3, unfinished), Some(3), false), exhausted);
        }
    }

    #[test]
    fn a_handled_message_is_handled_whatever_else_is_known() {
        let dead_lettered = KnownMessage {
            dead_lettered: true,
            ..failed(3, true)
        };
        assert_eq!(
            decide(dead_lettered.clone(), Some(3), false),
            BeginAttempt::DeadLettered
        );
        let handled = KnownMessage {
            handled: Some(7),
            ..dead_lettered
        };
        let seven = BeginAttempt::Handled(Fingerprint::from_i64(7));
        assert_eq!(decide(handled, Some(3), false), seven);
    }
}
