//! Metrics in the Prometheus text format.

use std::{sync::OnceLock, time::Duration};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// The bounds of the histograms' buckets, in seconds: from a quick transaction to the longest back-off.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0,
];
/// How often samples are sorted into buckets if nothing scrapes them.
const UPKEEP: Duration = Duration::from_secs(5);

/// The recorder of the program, which has only one. `None` if the program has installed one of its own.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder, unless the program has one of its own.
pub(crate) fn install() {
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS);
        let recorder = builder.unwrap_or_else(|_| PrometheusBuilder::new()).build_recorder();
        let handle = recorder.handle();
        let installed = metrics::set_global_recorder(recorder).is_ok();
        if !installed {
            tracing::warn!("the program has a metrics recorder of its own, so there is nothing at /metrics");
        }
        installed.then_some(handle)
    });
}

/// Everything that was recorded, as text; `None` without the recorder.
pub(crate) fn render() -> Option<String> {
    RECORDER.get()?.as_ref().map(PrometheusHandle::render)
}

/// Keeps samples from piling up while nothing scrapes them. Never returns.
pub(crate) async fn upkeep() {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        if let Some(Some(handle)) = RECORDER.get() {
            handle.run_upkeep();
        }
    }
}
