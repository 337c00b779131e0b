//! Pulling: waiting for deliveries, and keeping those that a cancelled pull leaves behind.

use std::{collections::VecDeque, mem, pin::pin, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

use super::{
    Shared, ack,
    ack::EmbeddedLease,
    clock::until,
    lag,
    take::{Durable, Found, Taken, take},
};
use crate::{
    broker::{BrokerError, Source, SourceStatus},
    delivery::Delivery,
};

/// Where the deliveries of one subscription to the embedded broker come from.
///
/// Dropped, it gives back what it had leased and not handed over.
#[derive(Debug)]
pub struct EmbeddedSource {
    shared: Arc<Shared>,
    durable: Arc<Durable>,
    /// The durable's, in milliseconds, as of the last look.
    ack_wait: i64,
    /// The transaction that leases runs in a task of its own and its end is awaited here: a pull that is dropped while
    /// it runs leaves it to the next one. In the pull itself the deliveries would be leased to nobody.
    taking: Option<JoinHandle<Result<Found, BrokerError>>>,
    /// Whether there was something the last time.
    flowing: bool,
    /// What was leased and not handed over.
    ready: VecDeque<Taken>,
    status: SourceStatus,
    /// Asks for the lag, as long as this lives.
    lag: AbortHandle,
}

impl EmbeddedSource {
    pub(super) fn new(shared: Arc<Shared>, durable: Durable, ack_wait: i64) -> Self {
        let durable = Arc::new(durable);
        shared.wakes.add(&durable);
        let status = SourceStatus::default();
        let lag = tokio::spawn(lag::report(
            Arc::downgrade(&shared),
            Arc::clone(&durable),
            status.clone(),
        ));
        Self {
            shared,
            durable,
            ack_wait,
            taking: None,
            flowing: false,
            ready: VecDeque::new(),
            status,
            lag: lag.abort_handle(),
        }
    }

    /// Leases what is ready, unless something is left from before. Returns how long to wait if there was nothing.
    async fn fill(&mut self, max: usize) -> Result<Duration, BrokerError> {
        self.finish_taking().await?;
        self.renew_ready().await?;
        if !self.ready.is_empty() {
            return Ok(Duration::ZERO);
        }
        let task = take(Arc::clone(&self.shared), Arc::clone(&self.durable), max, self.flowing);
        self.taking = Some(tokio::spawn(task));
        self.finish_taking().await
    }

    /// Waits for the task that takes messages, if there is one. Returns how long to wait if it found nothing.
    async fn finish_taking(&mut self) -> Result<Duration, BrokerError> {
        let Some(taking) = &mut self.taking else {
            return Ok(Duration::ZERO);
        };
        let found = taking.await;
        self.taking = None;
        let found = found.map_err(|error| BrokerError::unavailable("the task that takes messages ended", error))??;
        self.ack_wait = found.ack_wait;
        self.flowing = !found.taken.is_empty();
        self.ready.extend(found.taken);
        Ok(found.pause)
    }

    /// Prolongs the leases of deliveries that have been waiting here for a while, and drops those that have passed on.
    async fn renew_ready(&mut self) -> Result<(), BrokerError> {
        let mut index = 0;
        while let Some(taken) = self.ready.get(index) {
            let now = self.shared.clock.now();
            if (0..self.ack_wait / 3).contains(&now.saturating_sub(taken.at)) {
                index += 1;
            } else if ack::renew(&self.shared, &self.durable, taken.seq, taken.count).await? {
                self.ready[index].at = now;
                index += 1;
            } else {
                self.ready.remove(index);
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, max: usize) -> Vec<(Delivery, EmbeddedLease)> {
        let lease = |taken: Taken| {
            let (shared, durable) = (Arc::clone(&self.shared), Arc::clone(&self.durable));
            (
                taken.delivery,
                EmbeddedLease::new(shared, durable, taken.seq, taken.count),
            )
        };
        self.ready.drain(..max.min(self.ready.len())).map(lease).collect()
    }
}

impl Source for EmbeddedSource {
    type Lease = EmbeddedLease;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let durable = Arc::clone(&self.durable);
        let start = Instant::now();
        loop {
            // Before the look, or what happens between the look and the wait would be missed.
            let mut woken = pin!(durable.woken.notified());
            woken.as_mut().enable();
            let pause = self.fill(max).await?;
            if !self.ready.is_empty() {
                return Ok(self.hand_over(max));
            }
            let rest = wait.saturating_sub(start.elapsed());
            if rest.is_zero() {
                return Ok(Vec::new());
            }
            // It ends early or late, and the next look tells.
            let _ = tokio::time::timeout(pause.min(rest), woken).await;
        }
    }

    async fn close(&mut self) {
        if let Some(leftovers) = self.leftovers() {
            leftovers.await;
        }
    }

    fn ack_wait(&self) -> Duration {
        until(self.ack_wait, 0)
    }

    fn status(&self) -> SourceStatus {
        self.status.clone()
    }
}

impl EmbeddedSource {
    /// Takes out what was leased and not handed over; the result gives it back. `None` if there is nothing.
    fn leftovers(&mut self) -> Option<impl Future<Output = ()> + Send + 'static> {
        let (taking, ready) = (self.taking.take(), mem::take(&mut self.ready));
        if taking.is_none() && ready.is_empty() {
            return None;
        }
        let (shared, durable) = (Arc::clone(&self.shared), Arc::clone(&self.durable));
        Some(async move {
            let taken = match taking {
                Some(taking) => taking
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .map_or_else(Vec::new, |found| found.taken),
                None => Vec::new(),
            };
            for taken in ready.into_iter().chain(taken) {
                if let Err(error) = ack::release(&shared, &durable, taken.seq, taken.count).await {
                    tracing::debug!(%error, seq = taken.seq, "a message that nobody has comes again when its lease runs out");
                }
            }
        })
    }
}

impl Drop for EmbeddedSource {
    fn drop(&mut self) {
        self.lag.abort();
        // Without a runtime the leases have to run out.
        if let (Some(leftovers), Ok(runtime)) = (self.leftovers(), Handle::try_current()) {
            runtime.spawn(leftovers);
        }
    }
}
