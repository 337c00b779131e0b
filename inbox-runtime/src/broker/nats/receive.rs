//! Handles what a source receives: deliveries, delete markers, and statuses of pull requests.

use tokio::time::{Instant, sleep_until};

use super::{
    ack_subject::AckSubject, durable::Durable, headers, lease::NatsLease, limits::SETTLE_TIMEOUT, protocol::RawMessage,
    source::NatsSource,
};
use crate::delivery::Delivery;

/// The header of a delete marker: the server published it because it removed a message (by age, purge or call).
const MARKER_HEADER: &str = "Nats-Marker-Reason";

/// Statuses of a pull request.
const IDLE_HEARTBEAT: u16 = 100;
const NOT_FOUND: u16 = 404;
const TIMEOUT: u16 = 408;
const REQUEST_TERMINATED: u16 = 409;

/// What was received.
pub(super) enum Received {
    Delivery,
    /// A delete marker, which is acknowledged without a handler.
    Marker,
    /// The pull request of that number has ended.
    PullEnded(u64),
    ConsumerLost,
    Nothing,
}

impl NatsSource {
    /// Handles the messages that were received so far.
    pub(super) fn drain_received(&mut self) {
        while let Some(binding) = &mut self.binding {
            let drained_at = binding.drained_at;
            let Some(message) = binding.messages.try_next() else {
                binding.drained_at = Instant::now();
                return;
            };
            self.on_message(&message, drained_at);
        }
    }

    /// Waits for a message or a change of the connection, at most until `deadline`.
    pub(super) async fn receive(&mut self, deadline: Instant) -> Received {
        let mut changes = self.jetstream.deliveries.changes();
        let is_connected = self.jetstream.deliveries.is_connected();
        let Some(binding) = self.binding.as_mut().filter(|_| is_connected) else {
            return Received::Nothing;
        };
        let message = tokio::select! {
            biased;
            message = binding.messages.next() => message,
            _ = changes.changed() => return Received::Nothing,
            () = sleep_until(deadline) => return Received::Nothing,
        };
        // It was empty until now.
        binding.drained_at = Instant::now();
        match message {
            Some(message) => self.on_message(&message, Instant::now()),
            None => {
                self.mark_lost();
                Received::ConsumerLost
            }
        }
    }

    /// Handles a message that was received after `received_after`.
    pub(super) fn on_message(&mut self, message: &RawMessage, received_after: Instant) -> Received {
        self.clear_missing_permission();
        match message.reply.as_deref().and_then(AckSubject::parse) {
            Some(ack_subject) => self.on_delivery(message, &ack_subject, received_after),
            None => self.on_status(message),
        }
    }

    fn on_delivery(&mut self, message: &RawMessage, ack_subject: &AckSubject<'_>, received_after: Instant) -> Received {
        let Some(binding) = &mut self.binding else {
            return Received::Nothing;
        };
        binding.count_delivery();
        // The stream or the consumer was recreated unnoticed. Its messages reuse the sequence numbers of the old one's
        // and must not be taken for those.
        let is_recreated = ack_subject.consumer_seq <= binding.last_consumer_seq
            || binding.stream_deleted_advisory.try_next().is_some();
        if is_recreated {
            let (jetstream, subject) = (self.jetstream.clone(), ack_subject.text.to_owned());
            tokio::spawn(async move { jetstream.request(subject, "-NAK".into(), SETTLE_TIMEOUT).await });
            self.mark_lost();
            return Received::ConsumerLost;
        }
        binding.last_consumer_seq = ack_subject.consumer_seq;
        self.failures = 0;
        let durable = binding.durable.clone();
        let delivery = delivery(&durable, message, ack_subject);
        if let Some(reason) = delivery.headers.get(MARKER_HEADER) {
            let reason = String::from_utf8_lossy(reason).into_owned();
            let (jetstream, subject) = (self.jetstream.clone(), ack_subject.text.to_owned());
            // If the ack is lost, the marker is redelivered and skipped again.
            tokio::spawn(async move { durable.acks.ack(&jetstream, subject).await });
            self.count_marker(&delivery.position, &reason);
            return Received::Marker;
        }
        let lease = NatsLease::new(
            self.jetstream.clone(),
            durable,
            ack_subject.stream_seq,
            ack_subject.text.to_owned(),
            received_after,
        );
        self.ready.push_back((delivery, lease));
        Received::Delivery
    }

    fn count_marker(&mut self, position: &str, reason: &str) {
        self.skipped_markers += 1;
        if self.skipped_markers == 1 {
            tracing::info!(
                group = self.subscription.group,
                subject = self.subscription.subject,
                position,
                reason,
                "a delete marker of the stream is acknowledged without a handler, as every later one will be"
            );
        }
    }

    /// Handles the status of a pull request.
    fn on_status(&mut self, message: &RawMessage) -> Received {
        let (Some(binding), Some((status, description))) = (&mut self.binding, message.status()) else {
            return Received::Nothing;
        };
        if status == IDLE_HEARTBEAT {
            return Received::Nothing;
        }
        let last_token = message.subject.rsplit('.').next();
        let number = last_token.and_then(|number| number.parse().ok()).unwrap_or_default();
        binding.end_pull(number);
        match status {
            NOT_FOUND | TIMEOUT => Received::PullEnded(number),
            // Another server continues.
            REQUEST_TERMINATED if ["Leadership Change", "Server Shutdown"].contains(&description.as_str()) => {
                Received::PullEnded(number)
            }
            _ => {
                tracing::debug!(
                    durable = self.name,
                    status,
                    why = description,
                    "the server ended a pull request"
                );
                self.mark_lost();
                Received::ConsumerLost
            }
        }
    }
}

fn delivery(durable: &Durable, message: &RawMessage, ack_subject: &AckSubject<'_>) -> Delivery {
    let mut delivery = Delivery::new(message.subject.clone(), durable.position(ack_subject.stream_seq));
    delivery.headers = headers::parse_block(&message.headers);
    delivery.payload = Some(message.payload.clone());
    delivery.delivery_count = Some(ack_subject.deliveries);
    delivery.redelivered = ack_subject.deliveries > 1;
    delivery.published_at = ack_subject.published_at;
    delivery
}
