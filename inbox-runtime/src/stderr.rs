//! Warnings and errors on the standard error stream, for a program that has installed no subscriber: what goes wrong must not
//! be silent.

use std::{fmt, io::Write, time::SystemTime};

use tracing::{
    Event, Metadata, Subscriber,
    dispatcher::{self, Dispatch},
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

/// Prints from now on what nobody else takes, unless the program has a subscriber. One that is installed later stays out:
/// `tracing` knows one for the whole program.
pub(crate) fn print_unless_subscribed() {
    if dispatcher::has_been_set() {
        return;
    }
    let wanted = std::env::var("RUST_LOG")
        .ok()
        .and_then(|level| level.trim().parse().ok());
    let printer = Printer(wanted.unwrap_or(LevelFilter::WARN));
    // Somebody else may have been faster.
    let _ = dispatcher::set_global_default(Dispatch::new(printer));
}

/// Prints each event up to that level as a line. Spans are not kept.
struct Printer(LevelFilter);

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.0
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let (time, metadata) = (humantime::format_rfc3339_millis(SystemTime::now()), event.metadata());
        let Line { message, fields } = line;
        // Nobody may be there to read it.
        let _ = writeln!(
            std::io::stderr(),
            "{time} {} {}: {message}{fields}",
            metadata.level(),
            metadata.target()
        );
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// An event's message, and its fields behind it.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == "message" {
            self.message = value.to_string();
        } else {
            self.fields.push_str(&format!(" {}={value}", field.name()));
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}
