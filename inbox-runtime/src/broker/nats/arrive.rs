//! What is asked of the server, and what comes from it.

use std::time::Duration;

use async_nats::{Message, StatusCode};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{
    ack::NatsLease, config::PULL_GRACE, durable::Durable, headers, open::Asked, reply::Reply, source::NatsSource,
};
use crate::{broker::BrokerError, delivery::Delivery};

/// What a message from the server was.
pub(super) enum Arrived {
    Delivery,
    /// The request of that number has ended.
    Over(u64),
    /// The durable isn't there any more, or isn't what it was.
    Gone,
    Nothing,
}

impl NatsSource {
    /// Sends a request for `max` messages: those that are ready, or those that come within `wait`.
    pub(super) async fn ask(&mut self, max: usize, wait: Option<Duration>) -> Result<u64, BrokerError> {
        let client = self.link.connected().await?;
        let Some(open) = &mut self.open else { return Ok(0) };
        let body = match wait {
            None => json!({ "batch": max, "no_wait": true }),
            Some(wait) => json!({ "batch": max, "expires": u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX) }),
        };
        let number = open.number + 1;
        let subject = format!(
            "$JS.API.CONSUMER.MSG.NEXT.{}.{}",
            open.durable.stream, open.durable.name
        );
        client
            .publish_with_reply(subject, format!("{}.{number}", open.inbox), body.to_string().into())
            .await
            .map_err(|error| BrokerError::unavailable("messages can't be asked for", error))?;
        open.number = number;
        if let Some(wait) = wait {
            open.asked = Some(Asked {
                number,
                left: max,
                over: Instant::now() + wait + PULL_GRACE,
            });
        }
        Ok(number)
    }

    /// Takes out what has arrived.
    pub(super) fn take_arrived(&mut self) {
        while let Some(open) = &mut self.open {
            let since = open.emptied;
            match open.incoming.next().now_or_never() {
                Some(Some(message)) => {
                    self.arrive(&message, since);
                }
                // It ends only with the client.
                Some(None) => self.lose(),
                None => {
                    open.emptied = Instant::now();
                    return;
                }
            }
        }
    }

    pub(super) fn arrive(&mut self, message: &Message, since: Instant) -> Arrived {
        let Some(open) = &mut self.open else {
            return Arrived::Nothing;
        };
        if let Some(reply) = message.reply.as_deref().and_then(Reply::read) {
            if let Some(asked) = &mut open.asked {
                asked.left -= 1;
                if asked.left == 0 {
                    open.asked = None;
                }
            }
            // The stream or the durable was made anew without our hearing of its end. Its messages have the old one's
            // numbers, so none is taken for one of those.
            if reply.number <= open.last || open.obituary.next().now_or_never().is_some() {
                let link = self.link.clone();
                let back = reply.text.to_owned();
                tokio::spawn(async move { link.ask(back, "-NAK".into()).await });
                self.lose();
                return Arrived::Gone;
            }
            open.last = reply.number;
            self.failures = 0;
            let delivery = delivery(&open.durable, message, &reply);
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

    /// The server says how it is with a request.
    pub(super) fn status_arrives(&mut self, message: &Message) -> Arrived {
        let (Some(open), Some(status)) = (&mut self.open, message.status) else {
            return Arrived::Nothing;
        };
        if status == StatusCode::IDLE_HEARTBEAT {
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
        let why = message.description.as_deref().unwrap_or("no reason given");
        match status {
            StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Arrived::Over(number),
            // It goes on elsewhere.
            StatusCode::REQUEST_TERMINATED if ["Leadership Change", "Server Shutdown"].contains(&why) => {
                Arrived::Over(number)
            }
            _ => {
                tracing::debug!(durable = self.name, %status, why, "a request for messages was ended");
                self.lose();
                Arrived::Gone
            }
        }
    }

    /// Waits until something arrives or changes, at most until `deadline`.
    pub(super) async fn next(&mut self, deadline: Instant) -> Arrived {
        let mut changes = self.link.changes();
        let Some(open) = self.open.as_mut().filter(|_| self.link.is_connected()) else {
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

fn delivery(durable: &Durable, message: &Message, reply: &Reply<'_>) -> Delivery {
    let mut delivery = Delivery::new(message.subject.to_string(), durable.position(reply.seq));
    delivery.headers = headers::from_map(message.headers.as_ref());
    delivery.payload = Some(message.payload.clone());
    delivery.delivery_count = Some(reply.deliveries);
    delivery.redelivered = reply.deliveries > 1;
    delivery.published_at = reply.published_at;
    delivery
}
