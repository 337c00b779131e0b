//! Whether a client can reach the brokers, and if not, why: the most telling recent cause.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::error::RDKafkaErrorCode;

use super::errors;

/// How long a cause is kept although a less telling one followed. librdkafka repeats a lasting one every 30 s.
const CAUSE_TTL: Duration = Duration::from_secs(45);

/// The state of one client's broker connections.
#[derive(Debug, Default)]
pub(super) struct Reachability(Mutex<ConnectionState>);

#[derive(Debug, Default)]
struct ConnectionState {
    /// Why the last connection was closed or failed.
    cause: Option<Cause>,
    /// No broker answers; with the weight of the cause that was logged.
    down: Option<u8>,
    /// A broker has answered once.
    was_up: bool,
}

#[derive(Debug)]
struct Cause {
    /// How much it explains, see [`errors::ErrorScope::Connection`].
    weight: u8,
    text: String,
    since: Instant,
}

impl Reachability {
    /// A connection was closed, or could not be opened.
    pub(super) fn record_failure(&self, weight: u8, code: RDKafkaErrorCode, reason: &str) {
        let reason = errors::without_details(reason);
        let mut state = self.lock();
        let advice = match errors::advice(code, reason) {
            "" if !state.was_up && reason.contains("Disconnected") => errors::CLOSED_AT_ONCE,
            advice => advice,
        };
        let text = format!("{reason}{advice}");
        let holds = |cause: &Cause| cause.weight > weight && cause.since.elapsed() < CAUSE_TTL;
        if !state.cause.as_ref().is_some_and(holds) {
            let since = Instant::now();
            state.cause = Some(Cause { weight, text, since });
        }
    }

    /// No broker answers. Returns the text for health, and whether it is to be logged.
    pub(super) fn mark_down(&self) -> (String, bool) {
        let mut state = self.lock();
        let weight = state.cause.as_ref().map_or(0, |cause| cause.weight);
        // A more telling cause may become known later, and is logged again.
        let is_new = state.down.is_none_or(|logged| weight > logged.max(1));
        state.down = Some(state.down.map_or(weight, |logged| logged.max(weight)));
        let text = match &state.cause {
            Some(cause) => format!("no broker answers: {}", cause.text),
            None => "no broker answers".to_owned(),
        };
        (text, is_new)
    }

    /// A broker answers. Returns whether none did before.
    pub(super) fn mark_up(&self) -> bool {
        let mut state = self.lock();
        state.cause = None;
        state.was_up = true;
        state.down.take().is_some()
    }

    /// Whether a connection has failed since a broker answered last.
    pub(super) fn has_failed(&self) -> bool {
        let state = self.lock();
        state.cause.is_some() || state.down.is_some()
    }

    /// Why no broker answers; `None` if one does, or the cause isn't known.
    pub(super) fn cause(&self) -> Option<String> {
        let state = self.lock();
        state.down?;
        state.cause.as_ref().map(|cause| cause.text.clone())
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g55_the_most_telling_cause_is_reported_and_logged_once() {
        let brokers = Reachability::default();
        assert_eq!(brokers.cause(), None);
        brokers.record_failure(
            1,
            RDKafkaErrorCode::BrokerTransportFailure,
            "one: refused (after 3ms in state CONNECT)",
        );
        assert_eq!(
            brokers.mark_down(),
            ("no broker answers: one: refused".to_owned(), true)
        );
        for _ in 0..3 {
            brokers.record_failure(
                1,
                RDKafkaErrorCode::BrokerTransportFailure,
                "two: refused (after 4ms in state CONNECT)",
            );
            let (text, is_new) = brokers.mark_down();
            assert!(text.ends_with("two: refused") && !is_new, "{text}");
        }
        brokers.record_failure(1, RDKafkaErrorCode::BrokerTransportFailure, "one: Disconnected");
        assert!(brokers.mark_down().0.contains("INBOX_KAFKA_SECURITY_PROTOCOL"));
        brokers.record_failure(3, RDKafkaErrorCode::Authentication, "Invalid username or password");
        let (text, is_new) = brokers.mark_down();
        assert!(text.contains("Invalid username") && is_new, "{text}");
        brokers.record_failure(1, RDKafkaErrorCode::BrokerTransportFailure, "one: Disconnected");
        let (text, is_new) = brokers.mark_down();
        assert!(text.contains("Invalid username") && !is_new, "{text}");
        assert!(
            brokers
                .cause()
                .is_some_and(|cause| cause.contains("INBOX_KAFKA_SASL_PASSWORD"))
        );
        assert!(brokers.mark_up() && !brokers.mark_up());
        assert_eq!(brokers.cause(), None);
        assert_eq!(brokers.mark_down(), ("no broker answers".to_owned(), true));
        // The protocol is right: a broker has answered with it.
        brokers.record_failure(1, RDKafkaErrorCode::BrokerTransportFailure, "one: Disconnected");
        assert!(brokers.mark_down().0.ends_with("one: Disconnected"));
    }
}
