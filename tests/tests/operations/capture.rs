//! What all tests of this binary log, and the spans that they make: a program has one subscriber.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::LazyLock,
};

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
};
use parking_lot::{Mutex, MutexGuard};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

/// The fields of a span or an event, as text.
pub(crate) type Fields = BTreeMap<String, String>;

/// Everything that was seen so far.
pub(crate) struct Captured {
    log: Mutex<Vec<u8>>,
    spans: Mutex<Vec<(String, Fields)>>,
    event_fields: Mutex<BTreeSet<String>>,
    exporter: InMemorySpanExporter,
}

/// Listens from the first call on, to everything, at the level TRACE.
pub(crate) fn captured() -> &'static Captured {
    static CAPTURED: LazyLock<Captured> = LazyLock::new(|| Captured {
        log: Mutex::default(),
        spans: Mutex::default(),
        event_fields: Mutex::default(),
        exporter: InMemorySpanExporter::default(),
    });
    static LISTENING: LazyLock<()> = LazyLock::new(|| {
        opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(CAPTURED.exporter.clone())
            .build();
        let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
        let log = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(|| Log(&CAPTURED));
        let subscriber = tracing_subscriber::registry()
            .with(traces.with_filter(LevelFilter::INFO))
            .with(log)
            .with(Names(&CAPTURED));
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber");
        // Its spans are exported when they end, as long as it is there.
        std::mem::forget(provider);
    });
    LazyLock::force(&LISTENING);
    &CAPTURED
}

impl Captured {
    /// The log so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&lock(&self.log)).into_owned()
    }

    /// The names of all fields of the runtime's own events so far.
    pub(crate) fn event_fields(&self) -> BTreeSet<String> {
        lock(&self.event_fields).clone()
    }

    /// The spans of a message that have ended, in that order.
    pub(crate) fn spans(&self, id: &str) -> Vec<(String, Fields)> {
        let spans = lock(&self.spans);
        let of = |span: &&(String, Fields)| span.1.get("message_id").is_some_and(|found| found == id);
        spans.iter().filter(of).cloned().collect()
    }

    /// The spans of a message as they were exported.
    pub(crate) fn exported(&self, id: &str) -> Vec<SpanData> {
        let spans = self.exporter.get_finished_spans().expect("the spans");
        let of = |span: &SpanData| {
            let mut attributes = span.attributes.iter();
            attributes.any(|attribute| attribute.key.as_str() == "message_id" && attribute.value.as_str() == id)
        };
        spans.into_iter().filter(of).collect()
    }
}

/// Writes to the log.
struct Log(&'static Captured);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0.log).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the names and values of fields.
struct Names(&'static Captured);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Names {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Values::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, record: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Values>()
        {
            record.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if event.metadata().target().starts_with("inbox_runtime") {
            let names = event.fields().map(|field| field.name().to_owned());
            lock(&self.0.event_fields).extend(names);
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id)
            && let Some(fields) = span.extensions_mut().remove::<Values>()
        {
            lock(&self.0.spans).push((span.name().to_owned(), fields.0));
        }
    }
}

#[derive(Default)]
struct Values(Fields);

impl Visit for Values {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
