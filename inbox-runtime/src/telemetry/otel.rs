//! The trace that a message belongs to, as the propagator finds it that the program has set in `opentelemetry::global`.

use std::collections::HashMap;

use opentelemetry::{Context, global, trace::TraceContextExt};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{contain::contain, delivery::Headers};

/// Makes the span a child of the one that published the message, if the propagator finds one. The propagator may be the
/// application's own code.
pub(super) fn adopt(span: &Span, headers: &Headers) {
    if headers.is_empty() {
        return;
    }
    let carrier = carrier(headers);
    let extract = || global::get_text_map_propagator(|found| found.extract_with_context(&Context::new(), &carrier));
    match contain(extract) {
        // A parent that isn't valid would take the span out of the trace that it begins in.
        Ok(parent) if parent.span().span_context().is_valid() => {
            // It fails without an OpenTelemetry layer, which is no mistake.
            let _ = span.set_parent(parent);
        }
        Ok(_) => {}
        Err(panic) => tracing::warn!(error = panic, "the propagator panicked; the message has no parent span"),
    }
}

/// Adds what the propagator writes for the trace of the span, where there is no header of that name.
pub(super) fn inject(span: &Span, headers: &mut Headers) {
    if span.is_disabled() {
        return;
    }
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return;
    }
    let mut carrier = HashMap::<String, String>::new();
    let inject = || global::get_text_map_propagator(|found| found.inject_context(&context, &mut carrier));
    if let Err(panic) = contain(inject) {
        tracing::warn!(
            error = panic,
            "the propagator panicked; a message is published without its trace"
        );
        return;
    }
    for (name, value) in carrier {
        if headers.get(&name).is_none() {
            headers.append(name, value);
        }
    }
}

/// The headers as a propagator reads them: by name in lower case, the values of one name as one list (RFC 9110, 5.3).
///
/// That is what W3C asks for: several `tracestate` headers are one list, several `traceparent` are none that is valid. A value
/// that isn't UTF-8 or is null is left out.
fn carrier(headers: &Headers) -> HashMap<String, String> {
    let mut carrier = HashMap::<String, String>::with_capacity(headers.len());
    for (name, value) in headers.iter() {
        let Some(value) = value.and_then(|value| std::str::from_utf8(value).ok()) else {
            continue;
        };
        let list = carrier.entry(name.to_ascii_lowercase());
        list.and_modify(|list| {
            list.push(',');
            list.push_str(value);
        })
        .or_insert_with(|| value.to_owned());
    }
    carrier
}

#[cfg(test)]
mod tests {
    use opentelemetry::propagation::Extractor;

    use super::*;

    #[test]
    fn headers_of_one_name_are_one_list() {
        let mut headers = Headers::new();
        headers.append("Tracestate", "rojo=1");
        headers.append("b3", &b"\xff"[..]);
        headers.append_null("baggage");
        headers.append("TRACESTATE", "congo=2");
        let carrier = carrier(&headers);
        assert_eq!(Extractor::get(&carrier, "tracestate"), Some("rojo=1,congo=2"));
        assert_eq!(Extractor::keys(&carrier), ["tracestate"]);
    }
}
