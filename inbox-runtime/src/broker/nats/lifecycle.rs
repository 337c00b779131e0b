//! Binds a source to its consumer, notices when that is lost or its subject moves, and reports what blocks it.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::{
    binding::Binding,
    durable::{Checkpoint, Durable, DurableInfo},
    error::BindError,
    jetstream::{inbox_denied, publish_denied},
    limits::{BIND_BACKOFF, RECONNECT_WAIT},
    monitor::{self, ConsumerMonitor, Observation},
    provision::provision,
    source::NatsSource,
};
use crate::{broker::BrokerError, error_chain::text};

impl NatsSource {
    /// Binds at the start, if that is possible now; otherwise reports why, and the next pull retries. Fails only for
    /// what waiting doesn't help.
    pub(super) async fn bind_at_start(&mut self) -> Result<(), BrokerError> {
        match self.jetstream.connected().await {
            Ok(()) => {}
            Err(error @ BrokerError::Invalid(_)) => return Err(error),
            Err(error) => {
                self.set_blocked(&text(&error));
                return Ok(());
            }
        }
        match self.bind().await {
            Ok(()) => Ok(()),
            Err(BindError::Unavailable(why)) => {
                self.on_bind_failed(&why);
                Ok(())
            }
            Err(BindError::Misconfigured(why)) => Err(BrokerError::Invalid(why)),
        }
    }

    /// Waits until it is bound and connected, at most until `deadline`.
    pub(super) async fn ensure_bound(&mut self, deadline: Instant) -> Result<(), BrokerError> {
        loop {
            // A short reconnect is not reported.
            let soon = deadline.min(Instant::now() + RECONNECT_WAIT);
            if let Err(error) = self.jetstream.wait_connected(soon).await {
                self.set_blocked(&text(&error));
                if Instant::now() >= deadline {
                    return Err(error);
                }
                continue;
            }
            if self.binding.is_some() {
                match self.missing_permission() {
                    Some(why) => self.set_blocked(&why),
                    None => self.clear_blocked(),
                }
                return Ok(());
            }
            if self.next_attempt > Instant::now() {
                sleep_until(self.next_attempt.min(deadline)).await;
            }
            if self.next_attempt <= Instant::now() {
                match self.bind().await {
                    Ok(()) => return Ok(()),
                    Err(BindError::Unavailable(why) | BindError::Misconfigured(why)) => self.on_bind_failed(&why),
                }
            }
            if Instant::now() >= deadline {
                let message = self.blocked_by.clone().unwrap_or_default();
                return Err(BrokerError::Unavailable { message, source: None });
            }
        }
    }

    async fn bind(&mut self) -> Result<(), BindError> {
        let (durable, info) = provision(
            &self.jetstream,
            &self.subscription,
            &self.name,
            self.checkpoint.as_ref(),
        )
        .await?;
        if let Some(previous) = self.previous.take() {
            previous.reconcile(&durable);
        }
        let connected = self.jetstream.deliveries.connected().await;
        connected.map_err(|error| BindError::Unavailable(text(&error)))?;
        self.update_checkpoint(&durable, &info);
        let durable = Arc::new(durable);
        let monitor = ConsumerMonitor::start(
            self.jetstream.clone(),
            durable.clone(),
            self.subscription.clone(),
            self.status.clone(),
        );
        self.binding = Some(Binding::new(&self.jetstream, durable, monitor));
        self.failures = 0;
        self.clear_blocked();
        Ok(())
    }

    fn on_bind_failed(&mut self, why: &str) {
        self.failures += 1;
        self.next_attempt = Instant::now() + BIND_BACKOFF.bound(self.failures);
        self.set_blocked(why);
    }

    /// The consumer is gone or isn't what it was: it must be found or created again.
    pub(super) fn mark_lost(&mut self) {
        if let Some(binding) = self.binding.take() {
            // What it had in flight is dropped: it can't be told from a successor's.
            tracing::warn!(
                durable = self.name,
                stream = binding.durable.stream,
                "the durable consumer is gone or was changed; looking for it"
            );
            binding.durable.mark_lost();
            self.status.clear_blocked(&stream_part(&binding.durable));
            self.status.set_lag(None);
            self.previous = Some(binding.durable);
        }
        self.failures += 1;
        if self.failures > 1 {
            self.next_attempt = Instant::now() + BIND_BACKOFF.bound(self.failures - 1);
        }
    }

    /// Applies the latest observation of the monitor, if it is new.
    pub(super) fn apply_monitor(&mut self) {
        let observation = self.binding.as_mut().and_then(|binding| binding.monitor.take_new());
        if let Some(observation) = observation {
            self.apply(observation);
        }
    }

    /// Reads the consumer's state now.
    pub(super) async fn refresh(&mut self) {
        let Some(binding) = &self.binding else { return };
        let durable = binding.durable.clone();
        if let Some(observation) = monitor::observe(&self.jetstream, &durable, &self.subscription).await {
            self.apply(observation);
        }
    }

    fn apply(&mut self, observation: Observation) {
        let Some(binding) = &self.binding else { return };
        let durable = binding.durable.clone();
        let Observation::Exists { info, streams } = observation else {
            return self.mark_lost();
        };
        self.update_checkpoint(&durable, &info);
        let part = stream_part(&durable);
        match monitor::subject_moved(&durable, &self.subscription.subject, streams.as_deref(), &info) {
            None => self.status.clear_blocked(&part),
            Some(_) if monitor::is_drained(&durable, streams.as_deref(), &info) && self.ready.is_empty() => {
                self.status.clear_blocked(&part);
                self.leave_stream(&durable);
            }
            Some(why) => self.status.set_blocked(part, why),
        }
    }

    /// Another stream holds the subject now, and all messages of this one are settled.
    fn leave_stream(&mut self, durable: &Durable) {
        tracing::warn!(
            durable = self.name,
            stream = durable.stream,
            "another stream holds the subject now; all messages of this one are settled, and that one is read from here on"
        );
        // Not marked as lost: late acks still mean this consumer.
        self.binding = None;
        self.status.set_lag(None);
    }

    fn update_checkpoint(&mut self, durable: &Durable, info: &DurableInfo) {
        self.ack_wait = info.ack_wait();
        self.checkpoint = Some(Checkpoint {
            stream: durable.stream.clone(),
            stream_created: durable.stream_created,
            ack_floor: info.ack_floor.stream_seq,
        });
        self.status.set_lag(Some(info.lag()));
        if info.paused {
            self.status
                .set_blocked(&self.name, "the durable is paused on the server");
        } else {
            self.status.clear_blocked(&self.name);
        }
    }

    /// The permission without which no messages come.
    fn missing_permission(&self) -> Option<String> {
        let binding = self.binding.as_ref()?;
        let deliveries = &self.jetstream.deliveries;
        if let Some(error) = deliveries.subscribe_violation(&binding.inbox_wildcard()) {
            return Some(inbox_denied(&error));
        }
        let subject = binding.pull_subject(&self.jetstream);
        let error = deliveries.publish_violation(&subject)?;
        Some(publish_denied(&error, &subject))
    }

    /// A message came: whatever permission was missing was granted.
    pub(super) fn clear_missing_permission(&self) {
        if let (Some(binding), Some(_)) = (&self.binding, &self.blocked_by) {
            let subject = binding.pull_subject(&self.jetstream);
            self.jetstream.deliveries.forget_publish_violation(&subject);
        }
    }

    fn set_blocked(&mut self, why: &str) {
        if self.blocked_by.as_deref() != Some(why) {
            tracing::warn!(
                group = self.subscription.group,
                subject = self.subscription.subject,
                why,
                "no messages are received"
            );
            self.blocked_by = Some(why.to_owned());
        }
        self.status.set_blocked(&self.subscription.subject, why);
    }

    fn clear_blocked(&mut self) {
        if self.blocked_by.take().is_some() {
            tracing::info!(
                group = self.subscription.group,
                subject = self.subscription.subject,
                "messages are received again"
            );
        }
        self.status.clear_blocked(&self.subscription.subject);
    }
}

/// The name of the stream among the parts of the source's status.
fn stream_part(durable: &Durable) -> String {
    format!("stream {}", durable.stream)
}
