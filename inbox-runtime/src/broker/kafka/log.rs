//! librdkafka's log lines as `tracing` events, with the target `librdkafka`.

use rdkafka::config::RDKafkaLogLevel;

/// Passes a line on.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel as Level;
    match level {
        // A producer is told what is set for consumers too, and the other way round.
        _ if facility == "CONFWARN" => tracing::debug!(target: "librdkafka", facility, "{message}"),
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: "librdkafka", facility, "{message}");
        }
        Level::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{message}"),
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
    }
}
