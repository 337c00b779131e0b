//! librdkafka's log lines as `tracing` events, with the target `librdkafka`.

use rdkafka::{config::RDKafkaLogLevel, error::RDKafkaErrorCode};

use super::reachability::Reachability;

/// The target of the events.
const TARGET: &str = "librdkafka";

/// The log level of a new client. At least INFO: those lines say why connections were closed.
pub(super) fn level() -> RDKafkaLogLevel {
    if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        RDKafkaLogLevel::Debug
    } else {
        RDKafkaLogLevel::Info
    }
}

/// Forwards a line to `tracing`. A failed connection is recorded as well.
pub(super) fn log(reachability: &Reachability, level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel as Level;
    if facility == "FAIL" {
        // librdkafka's own guess at the cause explains more than "Disconnected".
        let weight = if message.contains("security.protocol") { 2 } else { 1 };
        let message = message.split_once("]: ").map_or(message, |(_, message)| message);
        reachability.record_failure(weight, RDKafkaErrorCode::BrokerTransportFailure, message);
    }
    match level {
        // CONFWARN: the same properties are set on consumers and producers, and each client warns of the other's. FAIL,
        // ERROR: many lines a second while no broker answers; the inbox logs that once.
        _ if matches!(facility, "CONFWARN" | "FAIL" | "ERROR") => {
            tracing::debug!(target: TARGET, facility, "{message}");
        }
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: TARGET, facility, "{message}");
        }
        Level::Warning => tracing::warn!(target: TARGET, facility, "{message}"),
        Level::Notice | Level::Info => tracing::info!(target: TARGET, facility, "{message}"),
        Level::Debug => tracing::debug!(target: TARGET, facility, "{message}"),
    }
}
