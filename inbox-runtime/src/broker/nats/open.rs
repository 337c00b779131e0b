//! Opening a source, seeing to it that its durable is there, and saying what it waits for.

use std::{sync::Arc, time::Duration};

use async_nats::Subscriber;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{
    config::{OPEN_BACKOFF, SHORT_WAIT},
    durable::{self, Durable, DurableInfo, Known, OpenError},
    rescue::rescue,
    source::NatsSource,
};
use crate::{broker::BrokerError, pipeline::text};

/// A durable that is there, and what was asked of it.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) durable: Arc<Durable>,
    pub(super) inbox: String,
    pub(super) incoming: Subscriber,
    /// What the server says when the stream is deleted.
    pub(super) obituary: Subscriber,
    /// The number of the last request.
    pub(super) number: u64,
    pub(super) asked: Option<Asked>,
    /// The durable's number of the last delivery: a smaller one comes from a durable that was made anew.
    pub(super) last: u64,
    /// Until when everything that had arrived was taken out.
    pub(super) emptied: Instant,
    /// When the server was last asked how the durable is.
    pub(super) looked: Instant,
    /// How often a connection had been made.
    pub(super) connects: u64,
}

/// A request that the server holds.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u64,
    /// How many messages it may still bring.
    pub(super) left: usize,
    /// When its end should have been heard of.
    pub(super) over: Instant,
}

impl NatsSource {
    /// Opens it if that can be done now; says it, and is tried again by the next pull, if not. Only what is wrong is an error.
    pub(super) async fn open_at_start(&mut self) -> Result<(), BrokerError> {
        match self.link.connected().await {
            Ok(_) => {}
            Err(error @ BrokerError::Invalid(_)) => return Err(error),
            Err(error) => {
                self.wait(&text(&error));
                return Ok(());
            }
        }
        match self.try_open().await {
            Ok(()) => Ok(()),
            Err(OpenError::NotYet(why)) => {
                self.failed(&why);
                Ok(())
            }
            Err(OpenError::Wrong(why)) => Err(BrokerError::Invalid(why)),
        }
    }

    /// The stream that it reads.
    pub(super) fn stream(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.durable.stream.as_str())
    }

    pub(super) async fn try_open(&mut self) -> Result<(), OpenError> {
        let (durable, info) = durable::open(&self.link, &self.wish, &self.name, self.known.as_ref()).await?;
        if let Some(previous) = self.previous.take() {
            previous.found(&durable);
        }
        let not_yet = |error: BrokerError| OpenError::NotYet(text(&error));
        let client = self.link.connected().await.map_err(not_yet)?;
        let inbox = client.new_inbox();
        let subscribed = async |subject: String| {
            let subscribed = client.subscribe(subject).await;
            subscribed.map_err(|error| OpenError::NotYet(text(&error)))
        };
        let incoming = subscribed(format!("{inbox}.*")).await?;
        let obituary = subscribed(format!("$JS.EVENT.ADVISORY.STREAM.DELETED.{}", durable.stream)).await?;
        let now = Instant::now();
        self.learn(&durable, &info);
        self.open = Some(Open {
            durable: Arc::new(durable),
            inbox,
            incoming,
            obituary,
            number: 0,
            asked: None,
            last: 0,
            emptied: now,
            looked: now,
            connects: self.link.connects(),
        });
        self.failures = 0;
        self.go_on();
        // What was delivered to an earlier process and broke its connection.
        self.rescue().await;
        Ok(())
    }

    /// Notes what the server says about the durable.
    pub(super) fn learn(&mut self, durable: &Durable, info: &DurableInfo) {
        self.ack_wait = info.ack_wait();
        self.delivered = info.delivered.stream_seq;
        self.known = Some(Known {
            stream: durable.stream.clone(),
            stream_created: durable.stream_created,
            floor: info.ack_floor.stream_seq,
        });
        self.status.set_lag(Some(info.num_pending + info.num_ack_pending));
        if info.paused {
            self.status.wait(&self.name, "the durable is paused on the server");
        } else {
            self.status.go_on(&self.name);
        }
    }

    pub(super) fn wait(&mut self, why: &str) {
        if self.why.as_deref() != Some(why) {
            tracing::warn!(
                group = self.wish.group,
                subject = self.wish.subject,
                why,
                "no messages come; waiting for that to pass"
            );
            self.why = Some(why.to_owned());
        }
        self.status.wait(&self.wish.subject, why);
    }

    pub(super) fn go_on(&mut self) {
        if self.why.take().is_some() {
            tracing::info!(
                group = self.wish.group,
                subject = self.wish.subject,
                "messages come again"
            );
        }
        self.status.go_on(&self.wish.subject);
    }

    pub(super) fn failed(&mut self, why: &str) {
        self.failures += 1;
        self.next_try = Instant::now() + OPEN_BACKOFF.bound(self.failures);
        self.wait(why);
    }

    /// Waits until it is open and connected, at most until `deadline`.
    pub(super) async fn be_open(&mut self, deadline: Instant) -> Result<(), BrokerError> {
        loop {
            // A connection that is just being made anew is no news yet.
            let soon = deadline.min(Instant::now() + SHORT_WAIT);
            if let Err(error) = self.link.wait_connected(soon).await {
                self.wait(&text(&error));
                if Instant::now() >= deadline {
                    return Err(error);
                }
                continue;
            }
            if self.open.is_some() {
                self.go_on();
                return Ok(());
            }
            if self.next_try > Instant::now() {
                sleep_until(self.next_try.min(deadline)).await;
            }
            if self.next_try <= Instant::now() {
                let why = match self.try_open().await {
                    Ok(()) => return Ok(()),
                    Err(OpenError::NotYet(why) | OpenError::Wrong(why)) => why,
                };
                self.failed(&why);
            }
            if Instant::now() >= deadline {
                let message = self.why.clone().unwrap_or_default();
                return Err(BrokerError::Unavailable { message, source: None });
            }
        }
    }

    /// The durable has to be found again.
    pub(super) fn lose(&mut self) {
        if let Some(open) = self.open.take() {
            // Nothing that it had on its way counts: it can't be told from what a new one sends.
            tracing::warn!(
                durable = self.name,
                stream = open.durable.stream,
                "the durable is gone or has changed; looking for it"
            );
            open.durable.lost();
            self.previous = Some(open.durable);
        }
        self.failures += 1;
        if self.failures > 1 {
            self.next_try = Instant::now() + OPEN_BACKOFF.bound(self.failures - 1);
        }
    }

    /// Asks the server how the durable is, if that wasn't done for a while.
    pub(super) async fn look(&mut self, interval: Duration) {
        let Some(open) = self.open.as_mut().filter(|open| open.looked.elapsed() >= interval) else {
            return;
        };
        open.looked = Instant::now();
        let durable = open.durable.clone();
        let question = format!("CONSUMER.INFO.{}.{}", durable.stream, durable.name);
        let info: Result<DurableInfo, _> = self.link.api(&question, &Value::Null).await;
        match info {
            Ok(info) if info.created == durable.created => self.learn(&durable, &info),
            Ok(_) => self.lose(),
            Err(error) if error.is_not_found() => self.lose(),
            Err(error) => tracing::debug!(durable = self.name, ?error, "the durable could not be looked at"),
        }
    }

    /// After the connection was made anew: what was asked is forgotten, and something may have broken it.
    pub(super) async fn mind_connection(&mut self) {
        let connects = self.link.connects();
        if let Some(open) = self.open.as_mut().filter(|open| open.connects != connects) {
            open.connects = connects;
            open.asked = None;
            self.rescue().await;
        }
    }

    pub(super) async fn rescue(&mut self) {
        let Some(open) = &self.open else { return };
        match rescue(
            &self.link,
            &open.durable,
            &self.wish.subject,
            &self.rescued,
            self.delivered,
        )
        .await
        {
            Ok(found) => self.ready.extend(found),
            Err(error) => tracing::debug!(?error, "it could not be looked for messages that break the connection"),
        }
    }
}
