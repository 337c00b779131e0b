//! The trace that a message belongs to, by the W3C headers `traceparent` and `tracestate`.

use opentelemetry::{
    Context, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, TraceContextExt, TraceState},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::delivery::Headers;

/// Makes the span a child of the one that published the message. Invalid headers are ignored.
pub(super) fn adopt(span: &Span, headers: &Headers) {
    if let Some(parent) = parent(headers) {
        // It fails without an OpenTelemetry layer, which is no mistake.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

fn parent(headers: &Headers) -> Option<SpanContext> {
    let mut values = headers.get_all("traceparent");
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (trace, span, flags) = traceparent(std::str::from_utf8(value).ok()?)?;
    let states: Vec<_> = headers
        .get_all("tracestate")
        .filter_map(|value| std::str::from_utf8(value).ok())
        .collect();
    let state: TraceState = states.join(",").parse().unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state))
}

/// `00-<32 digits>-<16 digits>-<2 digits>`. A later version may append more.
fn traceparent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut parts = text.trim_ascii().splitn(5, '-');
    let version = hex(parts.next()?, 2)?;
    let trace = hex(parts.next()?, 32).filter(|trace| *trace != 0)?;
    let span = hex(parts.next()?, 16).filter(|span| *span != 0)?;
    let flags = hex(parts.next()?, 2)?;
    if version == 0xff || (version == 0 && parts.next().is_some()) {
        return None;
    }
    let span = SpanId::from(u64::try_from(span).ok()?);
    let flags = TraceFlags::new(u8::try_from(flags & 1).ok()?);
    Some((TraceId::from(trace), span, flags))
}

/// Exactly that number of digits, in lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let all = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    all.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(list: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in list {
            headers.append(*name, (*value).to_owned());
        }
        headers
    }

    #[test]
    fn the_w3c_headers_name_the_parent() {
        let found = parent(&headers(&[
            ("Traceparent", GOOD),
            ("tracestate", "rojo=1"),
            ("tracestate", "congo=2"),
        ]))
        .expect("a parent");
        assert_eq!(found.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(found.span_id().to_string(), "b7ad6b7169203331");
        assert!(found.is_sampled() && found.is_remote());
        assert_eq!(found.trace_state().header(), "rojo=1,congo=2");
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
        assert!(
            !parent(&headers(&[("traceparent", later)]))
                .expect("a parent")
                .is_sampled()
        );
        let state = parent(&headers(&[("traceparent", GOOD), ("tracestate", "no state")])).expect("a parent");
        assert_eq!(state.trace_state().header(), "", "the parent is there without it");
    }

    #[test]
    fn a_header_that_cannot_be_read_is_ignored() {
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(parent(&headers(&[("traceparent", wrong)])).is_none(), "{wrong}");
        }
        assert!(parent(&headers(&[("traceparent", GOOD), ("traceparent", GOOD)])).is_none());
        assert!(parent(&headers(&[])).is_none());
    }
}
