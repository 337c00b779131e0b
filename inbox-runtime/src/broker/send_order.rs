//! Which of the messages that are published together may be sent now.
//!
//! Messages of one subject and key are a *unit*. One of them is sent only when all before it are confirmed, or refused for good:
//!
//! ```text
//!  waiting ─ its predecessor is confirmed ─▶ ready ─ next ─▶ sent ─ answered ─▶ confirmed, refused, or failed
//!     ╰──────────── its predecessor has failed ──────────────▶ not sent
//! ```

use std::collections::{BTreeSet, HashMap};

use super::BrokerError;
use crate::delivery::Message;

/// How much of a unit is sent at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipelining {
    /// One message.
    One,
    /// Everything, once the first message is confirmed: for a client that itself sends nothing after what it could not send.
    #[cfg_attr(
        not(any(test, feature = "kafka")),
        expect(dead_code, reason = "librdkafka is such a client")
    )]
    Rest,
}

/// The state of the messages of one call, each known by its place in the call.
#[derive(Debug)]
pub(crate) struct SendOrder<T> {
    pipelining: Pipelining,
    /// May be sent now.
    ready: BTreeSet<usize>,
    /// The next message of the same unit.
    successors: Vec<Option<usize>>,
    sent: Vec<bool>,
    answers: Vec<Option<Result<T, BrokerError>>>,
    /// Nothing more is sent: no message can be published at the moment.
    stopped: bool,
}

impl<T> SendOrder<T> {
    pub(crate) fn new<'a>(messages: impl IntoIterator<Item = &'a Message>, pipelining: Pipelining) -> Self {
        let (mut ready, mut successors, mut last) = (BTreeSet::new(), Vec::new(), HashMap::new());
        for (place, message) in messages.into_iter().enumerate() {
            successors.push(None);
            match last.insert((message.subject.as_str(), message.key.as_deref()), place) {
                Some(before) => successors[before] = Some(place),
                None => {
                    ready.insert(place);
                }
            }
        }
        Self {
            pipelining,
            ready,
            sent: vec![false; successors.len()],
            answers: successors.iter().map(|_| None).collect(),
            successors,
            stopped: false,
        }
    }

    /// The next message to send, the first ones of the call first; `None` if none may be sent before another answer.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if self.stopped {
            return None;
        }
        let place = self.ready.pop_first()?;
        self.sent[place] = true;
        Some(place)
    }

    /// Records what came of a message. After [`BrokerError::Unavailable`] nothing more is sent.
    pub(crate) fn answered(&mut self, place: usize, answer: Result<T, BrokerError>) {
        match &answer {
            Ok(_) => self.release(place, self.pipelining),
            Err(BrokerError::Refused { .. }) => self.release(place, Pipelining::One),
            Err(error) => {
                self.stopped |= matches!(error, BrokerError::Unavailable { .. } | BrokerError::Ended(_));
                self.hold_back(place);
            }
        }
        self.answers[place] = Some(answer);
    }

    /// Sends nothing more.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "for a client that has failed"))]
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The messages without an answer, in their order.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "for a client that has failed"))]
    pub(crate) fn unanswered(&self) -> Vec<usize> {
        let places = 0..self.answers.len();
        places.filter(|place| self.answers[*place].is_none()).collect()
    }

    /// The answers, in the order of the messages.
    pub(crate) fn finish(self) -> Vec<Result<T, BrokerError>> {
        let stopped = self.stopped;
        let unsent = || {
            let source = None;
            Err(if stopped {
                let message = "it was not sent, since another message could not be published".to_owned();
                BrokerError::Unavailable { message, source }
            } else {
                let message = "there was no time to send it".to_owned();
                BrokerError::NotNow { message, source }
            })
        };
        let answers = self.answers.into_iter();
        answers.map(|answer| answer.unwrap_or_else(unsent)).collect()
    }

    fn is_waiting(&self, place: usize) -> bool {
        !self.sent[place] && self.answers[place].is_none() && !self.ready.contains(&place)
    }

    /// Makes the messages after this one ready.
    fn release(&mut self, mut place: usize, how_many: Pipelining) {
        while let Some(next) = self.successors[place].filter(|next| self.is_waiting(*next)) {
            self.ready.insert(next);
            if how_many == Pipelining::One {
                return;
            }
            place = next;
        }
    }

    /// Answers those after this one that are not sent yet.
    fn hold_back(&mut self, mut place: usize) {
        while let Some(next) = self.successors[place] {
            if !self.sent[next] {
                if self.answers[next].is_some() {
                    return;
                }
                self.ready.remove(&next);
                self.answers[next] = Some(Err(BrokerError::NotNow {
                    message: "an earlier message of the same subject and key waits".to_owned(),
                    source: None,
                }));
            }
            place = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn message((subject, key): (u8, Option<u8>)) -> Message {
        let message = Message::new(format!("s{subject}"), "{}");
        match key {
            Some(key) => message.key(vec![key]),
            None => message,
        }
    }

    fn messages(units: &[(u8, Option<u8>)]) -> Vec<Message> {
        units.iter().copied().map(message).collect()
    }

    fn error(kind: u8) -> BrokerError {
        let (message, source) = (String::new(), None);
        match kind {
            0 => BrokerError::Refused { message, source },
            1 => BrokerError::NotNow { message, source },
            _ => BrokerError::Unavailable { message, source },
        }
    }

    #[test]
    fn each_unit_goes_on_when_its_own_message_is_confirmed() {
        let messages = messages(&[(0, Some(1)), (0, Some(1)), (0, None), (0, None), (1, None)]);
        let mut order = SendOrder::new(&messages, Pipelining::One);
        assert_eq!([order.next(), order.next(), order.next()], [Some(0), Some(2), Some(4)]);
        assert_eq!(order.next(), None);
        order.answered(2, Ok(()));
        assert_eq!([order.next(), order.next()], [Some(3), None]);
        order.answered(0, Err(error(0)));
        assert_eq!(
            order.next(),
            Some(1),
            "a message that is refused for good keeps nobody back"
        );
    }

    #[test]
    fn the_rest_of_a_unit_is_sent_at_once_when_its_first_message_is_confirmed() {
        let messages = messages(&[(0, None); 4]);
        let mut order = SendOrder::new(&messages, Pipelining::Rest);
        assert_eq!([order.next(), order.next()], [Some(0), None]);
        order.answered(0, Err(error(0)));
        assert_eq!([order.next(), order.next()], [Some(1), None]);
        order.answered(1, Ok(()));
        assert_eq!([order.next(), order.next(), order.next()], [Some(2), Some(3), None]);
    }

    #[test]
    fn what_waits_for_a_failed_message_is_not_sent_and_the_others_are() {
        let messages = messages(&[(0, None), (0, None), (1, None), (0, None)]);
        let mut order = SendOrder::new(&messages, Pipelining::One);
        assert_eq!([order.next(), order.next()], [Some(0), Some(2)]);
        order.answered(0, Err(error(1)));
        order.answered(2, Ok(()));
        assert_eq!(order.next(), None);
        let answers = order.finish();
        assert!(answers[2].is_ok());
        for place in [1, 3] {
            let held = answers[place].as_ref().expect_err("not sent");
            assert!(matches!(held, BrokerError::NotNow { .. }), "{held}");
            assert!(held.to_string().contains("an earlier message"), "{held}");
        }
    }

    #[test]
    fn nothing_is_sent_after_the_broker_is_gone() {
        let messages = messages(&[(0, None), (1, None)]);
        let mut order = SendOrder::<()>::new(&messages, Pipelining::One);
        assert_eq!(order.next(), Some(0));
        order.answered(0, Err(error(2)));
        assert_eq!(order.next(), None);
        assert_eq!(order.unanswered(), [1]);
        assert!(matches!(order.finish()[1], Err(BrokerError::Unavailable { .. })));
    }

    proptest! {
        /// Whatever the answers are and whenever they come: a message is on the broker only after those before it in its unit.
        /// The broker may also have what it did not confirm.
        #[test]
        fn no_message_overtakes_another_one_of_its_unit(
            units in vec((0..2_u8, proptest::option::of(0..2_u8)), 0..40),
            replies in vec((any::<usize>(), 0..12_u8, any::<bool>()), 120),
        ) {
            let messages = messages(&units);
            let mut order = SendOrder::new(&messages, Pipelining::One);
            let (mut in_flight, mut stored) = (Vec::new(), vec![false; units.len()]);
            let mut told: Vec<Option<Result<usize, u8>>> = vec![None; units.len()];
            for (which, kind, is_stored) in replies {
                while let Some(place) = order.next() {
                    in_flight.push(place);
                }
                if in_flight.is_empty() {
                    break;
                }
                let place: usize = in_flight.swap_remove(which % in_flight.len());
                let answer = if kind < 3 { Err(kind) } else { Ok(place) };
                stored[place] = answer.is_ok() || (is_stored && kind == 2);
                let before = (0..place).filter(|before| units[*before] == units[place]);
                for before in before {
                    prop_assert!(stored[before] || told[before] == Some(Err(0)), "{place} overtakes {before}");
                }
                told[place] = Some(answer);
                order.answered(place, answer.map_err(error));
            }
            prop_assert!(in_flight.is_empty(), "some were never answered");
            let answers = order.finish();
            prop_assert_eq!(answers.len(), units.len());
            for (answer, told) in answers.into_iter().zip(told) {
                match told {
                    Some(Ok(place)) => prop_assert_eq!(answer.ok(), Some(place)),
                    Some(Err(0)) => {
                        let refused = matches!(answer, Err(BrokerError::Refused { .. }));
                        prop_assert!(refused, "{answer:?}");
                    }
                    // Neither what failed nor what was not sent counts as done.
                    _ => {
                        let later = matches!(answer, Err(BrokerError::NotNow { .. } | BrokerError::Unavailable { .. }));
                        prop_assert!(later, "{answer:?}");
                    }
                }
            }
        }

        /// The same for a client that keeps the order of what it was given and takes nothing after its first failure.
        #[test]
        fn nothing_is_given_to_the_client_after_a_failure_of_its_unit(
            units in vec((0..2_u8, proptest::option::of(0..2_u8)), 0..40),
            replies in vec((any::<usize>(), 0..12_u8), 120),
        ) {
            let messages = messages(&units);
            let mut order = SendOrder::new(&messages, Pipelining::Rest);
            let (mut in_flight, mut failed, mut confirmed) = (Vec::new(), Vec::new(), Vec::new());
            for (which, kind) in replies {
                while let Some(place) = order.next() {
                    prop_assert!(!failed.contains(&units[place]), "{place} is sent after a failure");
                    let alone = !in_flight.iter().any(|other: &usize| units[*other] == units[place]);
                    prop_assert!(alone || confirmed.contains(&units[place]), "{place} is sent before the first is confirmed");
                    in_flight.push(place);
                }
                if in_flight.is_empty() {
                    break;
                }
                let place: usize = in_flight.swap_remove(which % in_flight.len());
                match kind {
                    0 => {}
                    1 => failed.push(units[place]),
                    _ => confirmed.push(units[place]),
                }
                order.answered(place, if kind < 2 { Err(error(kind)) } else { Ok(()) });
            }
            prop_assert!(in_flight.is_empty() && order.next().is_none(), "some were never answered");
            prop_assert_eq!(order.finish().len(), units.len());
        }
    }
}
