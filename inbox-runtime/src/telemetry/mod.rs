//! The name of every span, field and metric, and what emits them.

use tracing::Span;

use crate::{
    delivery::{Delivery, Headers},
    handler::HandlerMeta,
};

#[cfg_attr(not(feature = "metrics"), path = "off.rs")]
mod instruments;
mod names;
mod open_transactions;
#[cfg(feature = "otel")]
mod otel;
#[cfg(all(feature = "metrics", feature = "http"))]
pub(crate) mod prometheus;

pub(crate) use instruments::{Instruments, OutboxInstruments, Timer};
pub use names::{FIELDS, Field, METRICS, Metric, MetricKind, OUTBOX_METRICS, SPAN};
pub(crate) use open_transactions::OpenTransactions;

/// The span of one message. Without a subscriber it costs next to nothing.
pub(crate) fn span(meta: &HandlerMeta, delivery: &Delivery, message_id: Option<&str>) -> Span {
    let span = tracing::info_span!(
        SPAN,
        group = meta.group,
        subject = delivery.subject,
        handler = meta.name,
        message_id,
        delivery_count = delivery.delivery_count,
        outcome = tracing::field::Empty,
    );
    #[cfg(feature = "otel")]
    if !span.is_disabled() {
        otel::adopt(&span, &delivery.headers);
    }
    span
}

/// Adds the trace of the current span to the headers of a message that is published, where they have none.
#[cfg_attr(not(feature = "otel"), expect(unused_variables, reason = "there are no traces"))]
pub(crate) fn inject(headers: &mut Headers) {
    #[cfg(feature = "otel")]
    otel::inject(&Span::current(), headers);
}

/// Maintains the recorder that the runtime has installed. Never returns.
pub(crate) async fn upkeep() {
    #[cfg(all(feature = "metrics", feature = "http"))]
    prometheus::upkeep().await;
    std::future::pending::<()>().await;
}
