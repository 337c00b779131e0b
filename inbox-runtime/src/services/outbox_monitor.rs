//! Watches one outbox, whoever relays it: how old its oldest message is, how many wait, how many are parked.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::service::Service;
use crate::{
    error_chain::text,
    outbox_watch::OutboxWatch,
    store::{Records, StoreError},
};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Parked messages are counted at every so-many-th look, and up to so many.
const PARKED_EVERY: u32 = 6;
const MAX_PARKED: u64 = 1_001;

/// Watches one outbox.
pub(crate) struct OutboxMonitor {
    /// The database's name and where it was given.
    database: String,
    records: Arc<dyn Records>,
    watch: Arc<OutboxWatch>,
    /// A relay of this program tells how old the oldest message is.
    relayed: bool,
}

impl OutboxMonitor {
    pub(crate) fn new(database: String, records: Arc<dyn Records>, watch: Arc<OutboxWatch>, relayed: bool) -> Self {
        Self {
            database,
            records,
            watch,
            relayed,
        }
    }

    /// Looks again and again. Never returns.
    async fn look(&self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut parked, mut failing) = (0, false);
        for look in 0_u32.. {
            ticks.tick().await;
            let looked = self.look_once(look % PARKED_EVERY == 0, &mut parked).await;
            let failed = looked.is_err();
            match looked {
                Err(error) if !failing => tracing::warn!(
                    database = self.database,
                    error = text(&error),
                    "the outbox can't be looked at now; trying again"
                ),
                Ok(()) if failing => tracing::info!(database = self.database, "the outbox is looked at again"),
                _ => {}
            }
            failing = failed;
        }
    }

    async fn look_once(&self, counts_parked: bool, parked: &mut u64) -> Result<(), StoreError> {
        if !self.relayed {
            let heads = self.records.outbox_heads().await?;
            self.watch.set_oldest(heads.lanes.iter().map(|head| head.age).max());
        }
        // One that is empty now and then has few.
        let pending = match self.watch.oldest() {
            Some(_) => {
                self.records
                    .count_outbox(self.watch.limits().max_pending.saturating_add(1))
                    .await?
            }
            None => 0,
        };
        if counts_parked {
            *parked = self.records.count_parked(MAX_PARKED).await?;
        }
        self.watch.set_counts(pending, *parked);
        Ok(())
    }
}

impl Service for OutboxMonitor {
    fn name(&self) -> String {
        format!("monitor of the outbox of {}", self.database)
    }

    async fn run(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.look()).await;
    }
}
