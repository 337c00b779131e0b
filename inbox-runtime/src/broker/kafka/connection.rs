//! Whether a client's brokers answer, and if not, why: the latest cause that explains the most, and one log line for each change.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::error::RDKafkaErrorCode;

use super::errors;

/// How long a cause keeps the place of one that explains less: librdkafka repeats one that lasts every thirty seconds.
const HOLDS: Duration = Duration::from_secs(45);

/// What is known about a client's connections.
#[derive(Debug, Default)]
pub(super) struct Connection(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Why the last connection ended, or was not made.
    cause: Option<Cause>,
    /// No broker answers, with the cause as it was logged.
    down: Option<u8>,
    /// A broker has answered once.
    was_up: bool,
}

#[derive(Debug)]
struct Cause {
    /// How much it explains, see [`errors::About::Connection`].
    weight: u8,
    text: String,
    since: Instant,
}

impl Connection {
    /// A connection ended, or could not be made.
    pub(super) fn failed(&self, weight: u8, code: RDKafkaErrorCode, reason: &str) {
        let reason = errors::lasting(reason);
        let mut state = self.lock();
        let advice = match errors::advice(code, reason) {
            "" if !state.was_up && reason.contains("Disconnected") => errors::CLOSED_AT_ONCE,
            advice => advice,
        };
        let text = format!("{reason}{advice}");
        let holds = |cause: &Cause| cause.weight > weight && cause.since.elapsed() < HOLDS;
        if !state.cause.as_ref().is_some_and(holds) {
            let since = Instant::now();
            state.cause = Some(Cause { weight, text, since });
        }
    }

    /// No broker answers. Returns the text for health, and whether that is news for the log.
    pub(super) fn down(&self) -> (String, bool) {
        let mut state = self.lock();
        let weight = state.cause.as_ref().map_or(0, |cause| cause.weight);
        // The cause may come after its consequence. One that explains less is none.
        let news = state.down.is_none_or(|logged| weight > logged.max(1));
        state.down = Some(state.down.map_or(weight, |logged| logged.max(weight)));
        let text = match &state.cause {
            Some(cause) => format!("no broker answers: {}", cause.text),
            None => "no broker answers".to_owned(),
        };
        (text, news)
    }

    /// A broker answers. Returns whether none did before.
    pub(super) fn up(&self) -> bool {
        let mut state = self.lock();
        state.cause = None;
        state.was_up = true;
        state.down.take().is_some()
    }

    /// Whether a connection has ended, or could not be made, since a broker answered last.
    pub(super) fn has_failed(&self) -> bool {
        let state = self.lock();
        state.cause.is_some() || state.down.is_some()
    }

    /// Why no broker answers, if none does.
    pub(super) fn cause(&self) -> Option<String> {
        let state = self.lock();
        state.down?;
        state.cause.as_ref().map(|cause| cause.text.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g55_the_cause_that_explains_most_is_told_and_logged_once() {
        let connection = Connection::default();
        assert_eq!(connection.cause(), None);
        connection.failed(
            1,
            RDKafkaErrorCode::BrokerTransportFailure,
            "one: refused (after 3ms in state CONNECT)",
        );
        assert_eq!(connection.down(), ("no broker answers: one: refused".to_owned(), true));
        for _ in 0..3 {
            connection.failed(
                1,
                RDKafkaErrorCode::BrokerTransportFailure,
                "two: refused (after 4ms in state CONNECT)",
            );
            let (text, news) = connection.down();
            assert!(text.ends_with("two: refused") && !news, "{text}");
        }
        connection.failed(1, RDKafkaErrorCode::BrokerTransportFailure, "one: Disconnected");
        assert!(connection.down().0.contains("INBOX_KAFKA_SECURITY_PROTOCOL"));
        connection.failed(3, RDKafkaErrorCode::Authentication, "Invalid username or password");
        let (text, news) = connection.down();
        assert!(text.contains("Invalid username") && news, "{text}");
        connection.failed(1, RDKafkaErrorCode::BrokerTransportFailure, "one: Disconnected");
        let (text, news) = connection.down();
        assert!(text.contains("Invalid username") && !news, "{text}");
        assert!(
            connection
                .cause()
                .is_some_and(|cause| cause.contains("INBOX_KAFKA_SASL_PASSWORD"))
        );
        assert!(connection.up() && !connection.up());
        assert_eq!(connection.cause(), None);
        assert_eq!(connection.down(), ("no broker answers".to_owned(), true));
        // The protocol is right, since it was.
        connection.failed(1, RDKafkaErrorCode::BrokerTransportFailure, "one: Disconnected");
        assert!(connection.down().0.ends_with("one: Disconnected"));
    }
}
