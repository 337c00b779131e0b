//! `Source` for the embedded broker: waits for deliveries, keeps those that a cancelled pull leaves behind.

use std::{
    collections::VecDeque,
    mem,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

use super::{
    clock::until,
    consumer::Consumer,
    fetch::{Fetched, LeasedDelivery, fetch},
    lag,
    lease::{EmbeddedLease, release, renew},
    shared::EmbeddedShared,
};
use crate::{
    broker::{BrokerError, Source, SourceStatus},
    delivery::Delivery,
};

/// The deliveries of one subscription to the embedded broker.
///
/// Dropped, it releases what it had leased and not returned.
#[derive(Debug)]
pub struct EmbeddedSource {
    shared: Arc<EmbeddedShared>,
    consumer: Arc<Consumer>,
    /// In milliseconds, as of the last fetch.
    ack_wait: i64,
    /// A fetch, in a task of its own: a pull that is dropped meanwhile leaves it to the next one. In the pull itself
    /// its deliveries would be leased without an owner.
    fetching: Option<JoinHandle<Result<Fetched, BrokerError>>>,
    /// Whether the last fetch found something.
    expects_more: bool,
    /// Leased and not returned yet.
    ready: VecDeque<LeasedDelivery>,
    status: SourceStatus,
    /// The task that reports the lag.
    lag: AbortHandle,
}

impl EmbeddedSource {
    pub(super) fn new(shared: Arc<EmbeddedShared>, consumer: Consumer, ack_wait: i64) -> Self {
        let consumer = Arc::new(consumer);
        shared.wakeups.add(&consumer);
        let status = SourceStatus::default();
        let lag = tokio::spawn(lag::report(
            Arc::downgrade(&shared),
            Arc::clone(&consumer),
            status.clone(),
        ));
        Self {
            shared,
            consumer,
            ack_wait,
            fetching: None,
            expects_more: false,
            ready: VecDeque::new(),
            status,
            lag: lag.abort_handle(),
        }
    }

    /// Fetches, unless something is left from before. Returns how long to wait if there was nothing.
    async fn fill(&mut self, max: usize) -> Result<Duration, BrokerError> {
        self.finish_fetch().await?;
        self.renew_ready().await?;
        if !self.ready.is_empty() {
            return Ok(Duration::ZERO);
        }
        let expected = self.consumer.published.swap(false, Ordering::Relaxed) || self.expects_more;
        let task = fetch(Arc::clone(&self.shared), Arc::clone(&self.consumer), max, expected);
        self.fetching = Some(tokio::spawn(task));
        self.finish_fetch().await
    }

    /// Waits for the fetch in flight, if there is one. Returns how long to wait if it found nothing.
    async fn finish_fetch(&mut self) -> Result<Duration, BrokerError> {
        let Some(fetching) = &mut self.fetching else {
            return Ok(Duration::ZERO);
        };
        let fetched = fetching.await;
        self.fetching = None;
        let fetched =
            fetched.map_err(|error| BrokerError::unavailable("the task that fetches messages ended", error))??;
        self.ack_wait = fetched.ack_wait;
        self.expects_more = !fetched.leased.is_empty();
        self.ready.extend(fetched.leased);
        Ok(fetched.pause)
    }

    /// Renews the leases of what was not returned yet, and drops those that are lost.
    async fn renew_ready(&mut self) -> Result<(), BrokerError> {
        let mut index = 0;
        while let Some(leased) = self.ready.get(index) {
            let now = self.shared.clock.now();
            if (0..self.ack_wait / 3).contains(&now.saturating_sub(leased.leased_at)) {
                index += 1;
            } else if renew(&self.shared, &self.consumer, leased.seq, leased.delivery_count).await? {
                self.ready[index].leased_at = now;
                index += 1;
            } else {
                self.ready.remove(index);
            }
        }
        Ok(())
    }

    fn take_ready(&mut self, max: usize) -> Vec<(Delivery, EmbeddedLease)> {
        let lease = |leased: LeasedDelivery| {
            let (shared, consumer) = (Arc::clone(&self.shared), Arc::clone(&self.consumer));
            let lease = EmbeddedLease::new(shared, consumer, leased.seq, leased.delivery_count);
            (leased.delivery, lease)
        };
        self.ready.drain(..max.min(self.ready.len())).map(lease).collect()
    }

    /// Takes what was leased and not returned; the future releases it. `None` if there is nothing.
    fn release_unreturned(&mut self) -> Option<impl Future<Output = ()> + Send + 'static> {
        let (fetching, ready) = (self.fetching.take(), mem::take(&mut self.ready));
        if fetching.is_none() && ready.is_empty() {
            return None;
        }
        let (shared, consumer) = (Arc::clone(&self.shared), Arc::clone(&self.consumer));
        Some(async move {
            let fetched = match fetching {
                Some(fetching) => fetching.await.ok().and_then(Result::ok),
                None => None,
            };
            let fetched = fetched.map_or_else(Vec::new, |fetched| fetched.leased);
            for leased in ready.into_iter().chain(fetched) {
                if let Err(error) = release(&shared, &consumer, leased.seq, leased.delivery_count).await {
                    tracing::debug!(
                        %error,
                        seq = leased.seq,
                        "a message could not be released; it is redelivered when its lease expires"
                    );
                }
            }
        })
    }
}

impl Source for EmbeddedSource {
    type Lease = EmbeddedLease;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let consumer = Arc::clone(&self.consumer);
        let start = Instant::now();
        loop {
            // Before the fetch, or a wakeup between the fetch and the wait would be missed.
            let mut woken = pin!(consumer.woken.notified());
            woken.as_mut().enable();
            let pause = self.fill(max).await?;
            if !self.ready.is_empty() {
                return Ok(self.take_ready(max));
            }
            let remaining = wait.saturating_sub(start.elapsed());
            if remaining.is_zero() {
                return Ok(Vec::new());
            }
            // Woken or not, the next fetch decides.
            let _ = tokio::time::timeout(pause.min(remaining), woken).await;
        }
    }

    async fn close(&mut self) {
        if let Some(release) = self.release_unreturned() {
            release.await;
        }
    }

    fn ack_wait(&self) -> Duration {
        until(self.ack_wait, 0)
    }

    fn status(&self) -> SourceStatus {
        self.status.clone()
    }
}

impl Drop for EmbeddedSource {
    fn drop(&mut self) {
        self.lag.abort();
        // Without a runtime the leases have to expire.
        if let (Some(release), Ok(runtime)) = (self.release_unreturned(), Handle::try_current()) {
            runtime.spawn(release);
        }
    }
}
