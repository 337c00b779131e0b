//! The upkeep of the metrics recorder that the runtime has installed.

use tokio_util::sync::CancellationToken;

use super::service::Service;
use crate::telemetry;

/// Maintains the metrics recorder.
pub(crate) struct Upkeep;

impl Service for Upkeep {
    fn name(&self) -> String {
        "upkeep of the metrics".to_owned()
    }

    async fn run(&self, stop: CancellationToken) {
        stop.run_until_cancelled(telemetry::upkeep()).await;
    }
}
