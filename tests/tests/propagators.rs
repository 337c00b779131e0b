//! Whose child the span of a message is: the program's propagator decides, which is one for the whole program, so that this is
//! one test.

use inbox_runtime::{Message, Outcome};
use inbox_tests::{EmbeddedMemory, Order, SqliteFile, TestBroker, World, eventually, next};
use opentelemetry::{
    Context, global,
    propagation::{Extractor, Injector, TextMapPropagator, text_map_propagator::FieldIter},
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider},
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
};
use tracing_subscriber::layer::SubscriberExt;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const PARENT: SpanId = SpanId::from_bytes(0xb7ad_6b71_6920_3331_u64.to_be_bytes());

/// A propagator of a program's own, which panics at what it doesn't like.
#[derive(Debug)]
struct ShopPropagator;

impl TextMapPropagator for ShopPropagator {
    fn inject_context(&self, _context: &Context, _injector: &mut dyn Injector) {}

    fn extract_with_context(&self, context: &Context, extractor: &dyn Extractor) -> Context {
        let Some(span) = extractor.get("shop-span") else {
            return context.clone();
        };
        let span = SpanId::from_hex(span).expect("a span");
        let trace = TraceId::from_hex(TRACE).expect("a trace");
        let parent = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE);
        context.with_remote_span_context(parent)
    }

    fn fields(&self) -> FieldIter<'_> {
        FieldIter::new(&[])
    }
}

struct Traced {
    world: World<EmbeddedMemory, SqliteFile>,
    exporter: InMemorySpanExporter,
}

impl Traced {
    /// The span of a message with these headers, which is handled.
    async fn span(&self, id: &str, headers: &[(&str, &[u8])]) -> SpanData {
        let message = Order::new("o1").to("order.created").id(id.to_owned());
        let add = |message: Message, (name, value): &(&str, &[u8])| message.header(*name, value.to_vec());
        let message = headers.iter().fold(message, add);
        self.world.broker.publish(message).await;
        let mut inbox = self.world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed, "{id}");
        eventually("the span has ended", async || self.exported(id).is_some()).await;
        self.exported(id).expect("it has ended")
    }

    fn exported(&self, id: &str) -> Option<SpanData> {
        let spans = self.exporter.get_finished_spans().expect("the spans");
        spans.into_iter().find(|span| {
            let mut attributes = span.attributes.iter();
            attributes.any(|attribute| attribute.key.as_str() == "message_id" && attribute.value.as_str() == id)
        })
    }

    async fn parent(&self, id: &str, headers: &[(&str, &[u8])]) -> SpanId {
        self.span(id, headers).await.parent_span_id
    }
}

#[tokio::test]
async fn the_propagator_of_the_program_names_the_parent() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).expect("no other subscriber");
    let world = World::new().await;
    let traced = Traced { world, exporter };
    let traceparent = ("traceparent", TRACEPARENT.as_bytes());

    let without = traced.parent("none", &[traceparent]).await;
    assert_eq!(without, SpanId::INVALID, "no propagator is set");

    global::set_text_map_propagator(TraceContextPropagator::new());
    let states = [("tracestate", &b"rojo=1"[..]), ("Tracestate", b"congo=2")];
    let child = traced.span("w3c", &[traceparent, states[0], states[1]]).await;
    assert_eq!(child.parent_span_id, PARENT);
    assert_eq!(child.span_context.trace_id().to_string(), TRACE);
    assert_eq!(child.span_context.trace_state().header(), "rojo=1,congo=2");
    for (id, headers) in [
        ("twice", &[traceparent, traceparent][..]),
        ("not-utf8", &[("traceparent", &b"\xff"[..])]),
        ("not-w3c", &[("traceparent", &b"00-these-are-no-digits-01"[..])]),
        ("no-header", &[]),
    ] {
        assert_eq!(traced.parent(id, headers).await, SpanId::INVALID, "{id}");
    }

    global::set_text_map_propagator(ShopPropagator);
    let own = ("Shop-Span", &b"b7ad6b7169203331"[..]);
    assert_eq!(traced.parent("own", &[traceparent, own]).await, PARENT);
    let panics = traced.parent("panic", &[("shop-span", &b"?"[..])]).await;
    assert_eq!(panics, SpanId::INVALID, "it panicked");
}
