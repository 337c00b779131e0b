//! librdkafka's log lines as `tracing` events, with the target `librdkafka`.

use rdkafka::{config::RDKafkaLogLevel, error::RDKafkaErrorCode};

use super::connection::Connection;

/// The target of the events.
const TARGET: &str = "librdkafka";

/// How much a new client logs. Its lines at INFO say why connections end, so there are never fewer.
pub(super) fn level() -> RDKafkaLogLevel {
    if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        RDKafkaLogLevel::Debug
    } else {
        RDKafkaLogLevel::Info
    }
}

/// Passes a line on, and tells the connection what it says about that.
pub(super) fn log(connection: &Connection, level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel as Level;
    if facility == "FAIL" {
        // librdkafka's own guess at what is wrong says more than that the connection was closed.
        let weight = if message.contains("security.protocol") { 2 } else { 1 };
        let message = message.split_once("]: ").map_or(message, |(_, message)| message);
        connection.failed(weight, RDKafkaErrorCode::BrokerTransportFailure, message);
    }
    match level {
        // A producer is told what is set for consumers too, and the other way round. What happens to connections comes many
        // times a second while no broker answers; the inbox says it once.
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
