//! The metrics of one pipeline, registered once with whatever recorder the program has at the start.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime},
};

use metrics::{Counter, Gauge, Histogram, Label};

use super::names::{
    ACK_FAILURES, ATTEMPTS, DEAD_LETTERS, DELIVERIES, HANDLING, IN_FLIGHT, LAG, METRICS, Metric, MetricKind,
    OLDEST_TRANSACTION, OUTBOX_METRICS, OUTBOX_OLDEST, OUTBOX_PARKED, OUTBOX_PENDING, OUTBOX_PUBLISHED,
    PAYLOAD_MISMATCHES, PUBLISH_TO_COMMIT,
};
use super::open_transactions::OpenTransactions;
use crate::{broker::SourceStatus, handler::HandlerMeta, outcome::Outcome, store::DeadLetterReason};

/// How often the sampled gauges are set.
const PERIOD: Duration = Duration::from_secs(1);

/// The metrics of one pipeline. Clones share them.
#[derive(Clone)]
pub(crate) struct Instruments(Arc<Handles>);

struct Handles {
    deliveries: [Counter; Outcome::ALL.len()],
    attempts: Counter,
    dead_letters: [Counter; DeadLetterReason::ALL.len()],
    ack_failures: Counter,
    payload_mismatches: Counter,
    handling: Histogram,
    publish_to_commit: Histogram,
    in_flight: Gauge,
    oldest_transaction: Gauge,
    /// Registered when the broker first reports one: 0 would be wrong where it is unknown.
    lag: OnceLock<Gauge>,
    meta: HandlerMeta,
}

/// The start of a handling.
pub(crate) struct Timer(Instant);

impl Timer {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Instruments {
    pub(crate) fn new(meta: &HandlerMeta) -> Self {
        describe();
        let counter =
            |metric: Metric, label: Option<&'static str>| metrics::counter!(metric.name, labels(meta, metric, label));
        Self(Arc::new(Handles {
            deliveries: Outcome::ALL.map(|outcome| counter(DELIVERIES, Some(outcome.as_str()))),
            attempts: counter(ATTEMPTS, None),
            dead_letters: DeadLetterReason::ALL.map(|reason| counter(DEAD_LETTERS, Some(reason.as_str()))),
            ack_failures: counter(ACK_FAILURES, None),
            payload_mismatches: counter(PAYLOAD_MISMATCHES, None),
            handling: metrics::histogram!(HANDLING.name, labels(meta, HANDLING, None)),
            publish_to_commit: metrics::histogram!(PUBLISH_TO_COMMIT.name, labels(meta, PUBLISH_TO_COMMIT, None)),
            in_flight: metrics::gauge!(IN_FLIGHT.name, labels(meta, IN_FLIGHT, None)),
            oldest_transaction: metrics::gauge!(OLDEST_TRANSACTION.name, labels(meta, OLDEST_TRANSACTION, None)),
            lag: OnceLock::new(),
            meta: meta.clone(),
        }))
    }

    pub(crate) fn outcome(&self, outcome: Outcome) {
        self.0.deliveries[outcome as usize].increment(1);
    }

    /// The handler begins an attempt.
    pub(crate) fn attempt(&self) {
        self.0.attempts.increment(1);
    }

    pub(crate) fn dead_letter(&self, reason: DeadLetterReason) {
        self.0.dead_letters[reason as usize].increment(1);
    }

    pub(crate) fn ack_failed(&self) {
        self.0.ack_failures.increment(1);
    }

    pub(crate) fn payload_mismatch(&self) {
        self.0.payload_mismatches.increment(1);
    }

    /// The handling that began with that timer is over.
    pub(crate) fn handled(&self, timer: &Timer) {
        self.0.handling.record(timer.0.elapsed());
    }

    /// The transaction of a message that was published at that time is committed. Clock skew makes it 0, not negative.
    pub(crate) fn committed(&self, published_at: Option<SystemTime>) {
        if let Some(at) = published_at {
            self.0.publish_to_commit.record(at.elapsed().unwrap_or_default());
        }
    }

    pub(crate) fn leased(&self) {
        self.0.in_flight.increment(1);
    }

    pub(crate) fn released(&self) {
        self.0.in_flight.decrement(1);
    }

    /// Sets the sampled gauges. Never returns.
    pub(crate) async fn sample(&self, open: &OpenTransactions, status: SourceStatus) {
        let _guard = LagGuard(self);
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let oldest = open.oldest().unwrap_or_default();
            self.0.oldest_transaction.set(oldest);
            self.set_lag(status.lag());
        }
    }

    /// A gauge that is registered can't be removed: NaN, which Prometheus takes for no number, replaces a lag that is not
    /// known any more.
    fn set_lag(&self, lag: Option<u64>) {
        let register = || metrics::gauge!(LAG.name, labels(&self.0.meta, LAG, None));
        match lag {
            #[allow(clippy::cast_precision_loss, reason = "a lag of 2^53 messages needn't be exact")]
            Some(lag) => self.0.lag.get_or_init(register).set(lag as f64),
            None => {
                if let Some(gauge) = self.0.lag.get() {
                    gauge.set(f64::NAN);
                }
            }
        }
    }
}

/// Makes the lag unknown when nothing samples it any more.
struct LagGuard<'a>(&'a Instruments);

impl Drop for LagGuard<'_> {
    fn drop(&mut self) {
        self.0.set_lag(None);
    }
}

/// The metrics of the outbox of one database.
pub(crate) struct OutboxInstruments {
    oldest: Gauge,
    pending: Gauge,
    published: Counter,
    parked: Gauge,
}

impl OutboxInstruments {
    pub(crate) fn new(database: &str) -> Self {
        describe();
        let labels = || vec![Label::new("database", database.to_owned())];
        Self {
            oldest: metrics::gauge!(OUTBOX_OLDEST.name, labels()),
            pending: metrics::gauge!(OUTBOX_PENDING.name, labels()),
            published: metrics::counter!(OUTBOX_PUBLISHED.name, labels()),
            parked: metrics::gauge!(OUTBOX_PARKED.name, labels()),
        }
    }

    pub(crate) fn oldest(&self, age: Duration) {
        self.oldest.set(age);
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of 2^53 messages needn't be exact")]
    pub(crate) fn pending(&self, messages: u64) {
        self.pending.set(messages as f64);
    }

    pub(crate) fn published(&self, messages: u64) {
        self.published.increment(messages);
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of 2^53 messages needn't be exact")]
    pub(crate) fn parked(&self, messages: u64) {
        self.parked.set(messages as f64);
    }
}

/// Describes each metric to the recorder.
fn describe() {
    for Metric {
        name, kind, meaning, ..
    } in METRICS.into_iter().chain(OUTBOX_METRICS)
    {
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, meaning),
            MetricKind::Gauge => metrics::describe_gauge!(name, meaning),
            MetricKind::Histogram => metrics::describe_histogram!(name, meaning),
        }
    }
}

/// The labels. The subject is the declared one, so that their cardinality is the number of handlers.
fn labels(meta: &HandlerMeta, metric: Metric, value: Option<&'static str>) -> Vec<Label> {
    let mut labels = vec![
        Label::from_static_parts("group", meta.group),
        Label::from_static_parts("handler", meta.name),
        Label::from_static_parts("subject", meta.subject),
    ];
    if let (Some(label), Some(value)) = (metric.label, value) {
        labels.push(Label::from_static_parts(label, value));
    }
    labels
}
