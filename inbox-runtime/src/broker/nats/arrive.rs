//! What is asked of the server, and what comes from it.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{
    ack::NatsLease,
    config::{PULL_GRACE, SETTLE_TIMEOUT},
    durable::Durable,
    headers,
    open::Asked,
    reply::Reply,
    source::NatsSource,
    wire::Incoming,
};
use crate::delivery::Delivery;

/// By this header the server says that a message was removed (by its age, a purge or a call), in a stream with delete markers.
/// Nobody has published it.
const MARKER: &str = "Nats-Marker-Reason";

/// What the server says about a request, as HTTP has it.
const IDLE_HEARTBEAT: u16 = 100;
const NOT_FOUND: u16 = 404;
const TIMEOUT: u16 = 408;
const REQUEST_TERMINATED: u16 = 409;

/// What a message from the server was.
pub(super) enum Arrived {
    Delivery,
    /// A delete marker, which is settled without a handler.
    Skipped,
    /// The request of that number has ended.
    Over(u64),
    /// The durable isn't there any more, or isn't what it was.
    Gone,
    Nothing,
}

impl NatsSource {
    /// Sends a request for `max` messages: those that are ready, or those that come within `wait`. Returns its number, or `None`
    /// if there is no connection.
    pub(super) fn ask(&mut self, max: usize, wait: Option<Duration>) -> Option<u64> {
        let open = self.open.as_mut()?;
        let body = match wait {
            None => json!({ "batch": max, "no_wait": true }),
            Some(wait) => json!({ "batch": max, "expires": u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX) }),
        };
        let number = open.number + 1;
        let reply = format!("{}.{number}", open.inbox);
        let question = open.question(&self.link);
        if !self.link.intake.send(&question, &reply, &body.to_string()) {
            return None;
        }
        open.number = number;
        if let Some(wait) = wait {
            open.asked = Some(Asked {
                number,
                left: max,
                over: Instant::now() + wait + PULL_GRACE,
            });
        }
        Some(number)
    }

    /// Takes out what has arrived.
    pub(super) fn take_arrived(&mut self) {
        while let Some(open) = &mut self.open {
            let since = open.emptied;
            let Some(message) = open.incoming.try_next() else {
                open.emptied = Instant::now();
                return;
            };
            self.arrive(&message, since);
        }
    }

    pub(super) fn arrive(&mut self, message: &Incoming, since: Instant) -> Arrived {
        self.granted();
        let Some(open) = &mut self.open else {
            return Arrived::Nothing;
        };
        if let Some(reply) = message.reply.as_deref().and_then(Reply::read) {
            if let Some(asked) = &mut open.asked {
                asked.left = asked.left.saturating_sub(1);
                if asked.left == 0 {
                    open.asked = None;
                }
            }
            // The stream or the durable was made anew without our hearing of its end. Its messages have the old one's
            // numbers, so none is taken for one of those.
            if reply.number <= open.last || open.obituary.try_next().is_some() {
                let link = self.link.clone();
                let back = reply.text.to_owned();
                tokio::spawn(async move { link.ask_within(back, "-NAK".into(), SETTLE_TIMEOUT).await });
                self.lose();
                return Arrived::Gone;
            }
            open.last = reply.number;
            self.failures = 0;
            let delivery = delivery(&open.durable, message, &reply);
            if let Some(reason) = delivery.headers.get(MARKER) {
                let reason = String::from_utf8_lossy(reason).into_owned();
                let (acks, link, reply) = (open.durable.acks.clone(), self.link.clone(), reply.text.to_owned());
                // One whose acknowledgement is lost is redelivered, and skipped again.
                tokio::spawn(async move { acks.ack(&link, reply).await });
                self.skip(&delivery.position, &reason);
                return Arrived::Skipped;
            }
            let lease = NatsLease::new(
                self.link.clone(),
                open.durable.clone(),
                reply.seq,
                reply.text.to_owned(),
                since,
            );
            self.ready.push_back((delivery, lease));
            return Arrived::Delivery;
        }
        self.status_arrives(message)
    }

    /// Counts a delete marker.
    fn skip(&mut self, position: &str, reason: &str) {
        self.skipped += 1;
        if self.skipped == 1 {
            tracing::info!(
                group = self.wish.group,
                subject = self.wish.subject,
                position,
                reason,
                "a delete marker of the stream is acknowledged without a handler, as every later one will be"
            );
        }
    }

    /// The server says how it is with a request.
    fn status_arrives(&mut self, message: &Incoming) -> Arrived {
        let (Some(open), Some((status, why))) = (&mut self.open, message.status()) else {
            return Arrived::Nothing;
        };
        if status == IDLE_HEARTBEAT {
            return Arrived::Nothing;
        }
        let number = message
            .subject
            .rsplit('.')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or_default();
        if open.asked.as_ref().is_some_and(|asked| asked.number == number) {
            open.asked = None;
        }
        match status {
            NOT_FOUND | TIMEOUT => Arrived::Over(number),
            // It goes on elsewhere.
            REQUEST_TERMINATED if ["Leadership Change", "Server Shutdown"].contains(&why.as_str()) => {
                Arrived::Over(number)
            }
            _ => {
                tracing::debug!(durable = self.name, status, why, "a request for messages was ended");
                self.lose();
                Arrived::Gone
            }
        }
    }

    /// Waits until something arrives or changes, at most until `deadline`.
    pub(super) async fn next(&mut self, deadline: Instant) -> Arrived {
        let mut changes = self.link.intake.changes();
        let Some(open) = self.open.as_mut().filter(|_| self.link.intake.is_connected()) else {
            return Arrived::Nothing;
        };
        let message = tokio::select! {
            biased;
            message = open.incoming.next() => message,
            _ = changes.changed() => return Arrived::Nothing,
            () = sleep_until(deadline) => return Arrived::Nothing,
        };
        // It was empty until now.
        open.emptied = Instant::now();
        match message {
            Some(message) => self.arrive(&message, Instant::now()),
            None => {
                self.lose();
                Arrived::Gone
            }
        }
    }
}

fn delivery(durable: &Durable, message: &Incoming, reply: &Reply<'_>) -> Delivery {
    let mut delivery = Delivery::new(message.subject.clone(), durable.position(reply.seq));
    delivery.headers = headers::from_block(&message.headers);
    delivery.payload = Some(message.payload.clone());
    delivery.delivery_count = Some(reply.deliveries);
    delivery.redelivered = reply.deliveries > 1;
    delivery.published_at = reply.published_at;
    delivery
}
