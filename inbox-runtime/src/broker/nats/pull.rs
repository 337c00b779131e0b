//! `Source` for NATS: sends pull requests, waits for deliveries, keeps those that a cancelled pull leaves behind.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    lease::NatsLease,
    limits::{PULL_EXPIRES, RECONNECT_WAIT, REQUEST_TIMEOUT},
    receive::Received,
    source::NatsSource,
};
use crate::{
    broker::{BrokerError, Lease, Source, SourceStatus},
    delivery::Delivery,
};

/// The longest wait of a pull: `Instant` can't represent every one.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

/// How often a pull without a wait is retried when the connection or the consumer is lost meanwhile.
const MAX_RETRIES: usize = 5;

impl NatsSource {
    /// Receives what is ready now.
    async fn pull_ready(&mut self, max: usize) -> Result<(), BrokerError> {
        for _ in 0..MAX_RETRIES {
            self.ensure_bound(Instant::now() + RECONNECT_WAIT).await?;
            self.catch_up();
            if !self.ready.is_empty() || self.request_ready(max).await {
                return Ok(());
            }
        }
        let message = "the NATS server did not answer a pull request".to_owned();
        Err(BrokerError::Unavailable { message, source: None })
    }

    /// Handles reconnects, observations and messages since the last pull.
    fn catch_up(&mut self) {
        if let Some(binding) = &mut self.binding {
            binding.check_reconnect(&self.jetstream);
        }
        self.apply_monitor();
        self.drain_received();
    }

    /// Sends a pull request without a wait. Returns whether it was answered.
    async fn request_ready(&mut self, max: usize) -> bool {
        let connects = self.jetstream.deliveries.connects();
        let Some(mut number) = self.send_pull(max, None) else {
            return false;
        };
        let mut deadline = Instant::now() + REQUEST_TIMEOUT;
        let mut remaining = max;
        while Instant::now() < deadline
            && self.jetstream.deliveries.is_connected()
            && self.jetstream.deliveries.connects() == connects
        {
            match self.receive(deadline).await {
                Received::Delivery => {
                    self.drain_received();
                    return true;
                }
                Received::PullEnded(ended) if ended == number => return true,
                Received::ConsumerLost => return false,
                Received::Marker if remaining > 1 => remaining -= 1,
                // The whole batch was delete markers.
                Received::Marker => match self.send_pull(max, None) {
                    Some(next) => (number, remaining, deadline) = (next, max, Instant::now() + REQUEST_TIMEOUT),
                    None => return false,
                },
                Received::PullEnded(_) | Received::Nothing => {}
            }
        }
        false
    }

    /// Receives what comes until `deadline`.
    async fn pull_until(&mut self, max: usize, deadline: Instant) {
        while !self.closed {
            if self.ensure_bound(deadline).await.is_err() {
                return;
            }
            self.catch_up();
            let now = Instant::now();
            if !self.ready.is_empty() || now >= deadline {
                return;
            }
            let Some(binding) = &mut self.binding else { continue };
            match &binding.pull {
                None => {
                    let wait = (deadline - now).clamp(Duration::from_millis(10), PULL_EXPIRES);
                    // `None` if not connected, which the next round handles.
                    let _ = self.send_pull(max, Some(wait));
                }
                Some(pull) if pull.lost_at <= now => {
                    binding.pull = None;
                    self.refresh().await;
                }
                Some(pull) => {
                    let until = pull.lost_at.min(deadline);
                    self.receive(until).await;
                }
            }
        }
    }

    fn send_pull(&mut self, max: usize, wait: Option<Duration>) -> Option<u64> {
        self.binding.as_mut()?.send_pull(&self.jetstream, max, wait)
    }

    /// Renews the leases of what was not returned yet, and drops those that are lost.
    async fn renew_ready(&mut self) {
        let mut index = 0;
        while let Some((_, lease)) = self.ready.get(index) {
            if lease.age() < self.ack_wait / 3 || lease.progress().await.is_ok() {
                index += 1;
            } else {
                self.ready.remove(index);
            }
        }
    }
}

impl Source for NatsSource {
    type Lease = NatsLease;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 || self.closed {
            return Ok(Vec::new());
        }
        self.drain_received();
        self.renew_ready().await;
        if self.ready.is_empty() {
            if wait.is_zero() {
                self.pull_ready(max).await?;
            } else {
                self.pull_until(max, Instant::now() + wait.min(MAX_WAIT)).await;
            }
        }
        Ok(self.ready.drain(..max.min(self.ready.len())).collect())
    }

    async fn close(&mut self) {
        self.closed = true;
        loop {
            self.drain_received();
            let unreturned = std::mem::take(&mut self.ready);
            join_all(unreturned.iter().map(|(_, lease)| lease.nak(Duration::ZERO))).await;
            // A pull request can't be cancelled: what it delivers after we unsubscribe would be leased until the
            // ack-wait ends.
            let Some(binding) = &mut self.binding else { break };
            let Some(lost_at) = binding.pull.as_ref().map(|pull| pull.lost_at) else {
                break;
            };
            match timeout_at(lost_at, binding.messages.next()).await {
                Ok(Some(message)) => {
                    self.on_message(&message, Instant::now());
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.binding = None;
        if self.skipped_markers > 0 {
            tracing::info!(
                group = self.subscription.group,
                subject = self.subscription.subject,
                skipped = self.skipped_markers,
                "delete markers were acknowledged without a handler"
            );
        }
    }

    fn ack_wait(&self) -> Duration {
        self.ack_wait
    }

    fn status(&self) -> SourceStatus {
        self.status.clone()
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        // Without a runtime the leases have to expire.
        let Ok(runtime) = Handle::try_current() else { return };
        self.drain_received();
        let unreturned = std::mem::take(&mut self.ready);
        if !unreturned.is_empty() {
            runtime.spawn(async move {
                join_all(unreturned.iter().map(|(_, lease)| lease.nak(Duration::ZERO))).await;
            });
        }
    }
}
